#include "core/disk/database.h"

#include "core/base/status_macros.h"

namespace sok {

Status DamagedRow(int group, Key key, const std::string& path) {
  return Status(Code::kDataLoss, "the row of key " + std::to_string(key) + " in group " +
                                     std::to_string(group) + " of '" + path + "' is damaged");
}

Status Database::ForEach(int group, const Visit& fn) const {
  auto view = Look(group);
  return view.ok() ? view.value()->ForEach(fn) : view.status();
}

Status Database::PublishJournal(const JournalReader& journal, const Meta& meta) {
  const auto publication = StartPublication();
  std::string value;
  for (const JournalReader::Place& place : journal.places()) {
    SOK_RETURN_IF_ERROR(journal.Read(place, &value));
    SOK_RETURN_IF_ERROR(publication->AddValue(place.key, value));
  }
  return publication->Finish(meta);
}

Status Database::Publish(const Meta& meta) {
  // Even without a row this is a publication, and not a write through the log, which would have no
  // mark.
  return has_pending() || !meta.empty() ? StartPublication()->Finish(meta) : Status();
}

}  // namespace sok
