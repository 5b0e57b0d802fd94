// Moves rows between storages by way of files.
#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/dump/damo_dump.h"
#include "core/dump/dump_checks.h"
#include "core/dump/dump_file.h"
#include "core/dump/rows_file.h"
#include "core/storage/checkpoint_place.h"
#include "core/storage/storage.h"
#include "core/storage/storage_count.h"

namespace sok {
namespace {

// Rows of this layout have no slots, whatever the group's own is.
constexpr uint32_t kNoLayout = UINT32_MAX;
// A dump reports its progress after so many rows.
constexpr uint64_t kReportRows = 16384;
constexpr size_t kBatchBytes = size_t{4} << 20;

// Returns the time when a row of a file was updated: `now` if the file has no counts and times.
uint32_t TimeOf(const RowColumns& rows, size_t i, uint32_t now) {
  return rows.update_times ? static_cast<uint32_t>(rows.update_times[i]) : now;
}

bool SameSlots(const GroupMeta& a, const GroupMeta& b) {
  return RowLayout(a.dim, a.state.slots).SameShape(RowLayout(b.dim, b.state.slots));
}

}  // namespace

Result<uint64_t> Storage::Dump(const std::string& path, const DumpFilter& filter,
                               const DumpProgress& progress) {
  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(Ready());
  SOK_ASSIGN_OR_RETURN(auto groups, GroupsAtRest());
  if (filter.group >= 0 && groups.count(filter.group) == 0) {
    return NoGroup(filter.group);
  }
  SOK_RETURN_IF_ERROR(CheckOutside(path, core_->path, "dump"));
  SOK_RETURN_IF_ERROR(SettleAtRest());
  SOK_ASSIGN_OR_RETURN(auto writer, DumpWriter::Open(path));
  uint64_t total = 0, seen = 0, written = 0;
  for (const auto& [number, meta] : groups) {
    if (filter.group < 0 || filter.group == number) total += meta.rows;
  }
  const auto report = [&] {
    if (!progress || progress(seen, std::max(seen, total))) return Status();
    return Status(Code::kFailedPrecondition, "the dump to '" + path + "' was cancelled");
  };
  const auto see = [&] { return seen++ % kReportRows == 0 ? report() : Status(); };
  for (const auto& [number, meta] : groups) {
    if (filter.group >= 0 && filter.group != number) continue;
    const int slot_floats = LayoutOf(meta).slot_floats();
    SOK_RETURN_IF_ERROR(writer->BeginGroup({number, meta.dim, meta.ToJson(ttl()), slot_floats, 0}));
    const auto add = [&](const TableContents& row) { return writer->AddRows(row); };
    SOK_ASSIGN_OR_RETURN(const auto rows, ForEachRow(number, meta, filter, see, add));
    written += rows;
  }
  SOK_RETURN_IF_ERROR(report());
  SOK_RETURN_IF_ERROR(writer->Finish());
  return written;
}

Result<uint64_t> Storage::CopyRows(int group, uint32_t table, RowsFileWriter* writer,
                                   const DumpProgress& progress) {
  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(Ready());
  SOK_ASSIGN_OR_RETURN(const auto groups, GroupsAtRest());
  const auto found = groups.find(group);
  if (found == groups.end()) return NoGroup(group);
  SOK_RETURN_IF_ERROR(SettleAtRest());
  const GroupMeta& meta = found->second;
  RowsBlocks blocks(writer, table, meta.dim, LayoutOf(meta).slot_floats());
  const auto add = [&](const TableContents& row) { return blocks.Add(row); };
  uint64_t seen = 0;
  const auto see = [&] {
    if (seen++ % kReportRows != 0 || !progress || progress(seen, std::max(seen, meta.rows))) {
      return Status();
    }
    return Status(Code::kFailedPrecondition, "the copy of rows was cancelled");
  };
  SOK_ASSIGN_OR_RETURN(const auto rows, ForEachRow(group, meta, DumpFilter(), see, add));
  SOK_RETURN_IF_ERROR(blocks.End());
  return rows;
}

Result<uint64_t> Storage::ForEachRow(int number, const GroupMeta& meta, const DumpFilter& filter,
                                     const std::function<Status()>& see,
                                     const std::function<Status(const TableContents&)>& fn) const {
  const uint32_t now = core_->expiry->Now();
  const RowLayout layout = LayoutOf(meta);
  const size_t dim = meta.dim;
  std::vector<float> floats(dim + layout.slot_start().size());  // of one row
  Key key = 0;
  int64_t update_num = 0, update_time = 0;
  TableContents piece;
  piece.n = 1;
  piece.slot_floats = layout.slot_floats();
  piece.rows = {&key, floats.data(), floats.data() + dim, &update_num, &update_time};
  uint64_t written = 0;
  SOK_RETURN_IF_ERROR(
      core_->database->ForEach(number, [&](int, Key of_row, std::string_view bytes) {
        if (see) SOK_RETURN_IF_ERROR(see());
        RowValue value;
        if (!value.Parse(bytes, layout)) return DamagedRow(number, of_row, this->path());
        const RowMeta& row = value.header.meta;
        if (core_->expiry->Expired(row.update_time, now) || row.update_num < filter.min_count ||
            (filter.newer.has_value() && row.update_time <= *filter.newer)) {
          return Status();
        }
        value.Decode(layout, meta.layout, floats.data());
        key = of_row;
        update_num = row.update_num;
        update_time = row.update_time;
        ++written;
        return fn(piece);
      }));
  return written;
}

Result<std::map<int, GroupMeta>> Storage::Reconcile(const std::vector<Arrival>& arrivals,
                                                    const std::string& path) const {
  SOK_ASSIGN_OR_RETURN(auto present, GroupsAtRest());
  std::map<int, GroupMeta> groups;
  for (const Arrival& arrival : arrivals) {
    const std::string group = "group " + std::to_string(arrival.group);
    const auto found = present.find(arrival.group);
    GroupMeta meta;
    if (found == present.end()) {
      if (arrival.meta.has_value()) meta = *arrival.meta;
      meta.dim = arrival.dim;
      meta.rows = 0;
      meta.layout = 0;
      groups[arrival.group] = std::move(meta);
      continue;
    }
    meta = found->second;
    const std::string here = group + " of '" + core_->path + "'";
    if (meta.dim != arrival.dim) {
      return InvalidArgument(here + " has dimension " + std::to_string(meta.dim) + ", and in '" +
                             path + "' it has " + std::to_string(arrival.dim) +
                             "; load the file into another storage");
    }
    if (arrival.meta.has_value() && !arrival.meta->state.rule.empty()) {
      const TableState& theirs = arrival.meta->state;
      if (!meta.state.rule.empty() &&
          (meta.state.rule != theirs.rule || !SameSlots(meta, *arrival.meta))) {
        return InvalidArgument(
            "{group} has optimizer '{here}', and in '{file}' it has '{there}'; load the file into "
            "another storage",
            {{"group", here},
             {"here", RuleName{meta.state.rule}},
             {"file", path},
             {"there", RuleName{theirs.rule}}});
      }
      if (meta.state.rule.empty()) {
        if (groups_.count(arrival.group) != 0) {
          return Status(Code::kFailedPrecondition,
                        "the table of {group} is open and has no optimizer yet, and in '{file}' it "
                        "has '{there}'; load the file before the table is opened",
                        {{"group", here}, {"file", path}, {"there", RuleName{theirs.rule}}});
        }
        meta.state = theirs;
        ++meta.layout;  // the present rows lose their slots
      }
      // The table of a group that is open counts its steps by itself.
      if (groups_.count(arrival.group) == 0) {
        meta.state.steps = std::max(meta.state.steps, theirs.steps);
      }
    }
    groups[arrival.group] = std::move(meta);
  }
  return groups;
}

Status Storage::TakeIn(std::map<int, GroupMeta> groups, const AddRows& add) {
  // From here on only rows of the load are pending, so that they can be dropped again.
  SOK_RETURN_IF_ERROR(FlushAtRest());
  Database& database = *core_->database;
  const uint64_t in_doubt = database.writes_in_doubt();
  const auto arrived = std::make_shared<std::map<int, GroupMeta>>(std::move(groups));
  Resolution resolution = ResolutionOf([this, arrived] { UpdateAfterArrival(*arrived); });
  Status status = OrNoMemory([&] { return PublishArrivals(arrived.get(), add); });
  if (status.ok()) {
    UpdateAfterArrival(*arrived);
    return status;
  }
  const Status dropped = database.DropPending();
  if (database.writes_in_doubt() == in_doubt) {
    return dropped.ok() || database.failed() ? status : dropped;
  }
  return Resolve(status, std::move(resolution));
}

Storage::Resolution Storage::ResolutionOf(std::function<void()> follow) const {
  const auto happened = std::make_shared<bool>(false);
  return {[this, follow = std::move(follow), happened] {
            SOK_ASSIGN_OR_RETURN(*happened, core_->database->FailedPublicationIsThere());
            if (*happened) follow();
            return Status();
          },
          happened};
}

Status Storage::Resolve(const Status& failed, Resolution resolution) {
  core_->resolve = std::move(resolution.look);
  if (OrNoMemory([&] { return core_->Recover(); }).ok()) {
    return *resolution.happened ? Status() : failed;
  }
  return ErrorOrLiteral(
      failed.code(),
      "memory has ended, and whether the call has happened all the same shows once the disk can be "
      "used again: repeat it then",
      [&failed] {
        return failed.Within("",
                             "; whether the call has happened all the same shows once the disk can "
                             "be used again: repeat it then");
      });
}

Status Storage::PublishArrivals(std::map<int, GroupMeta>* groups, const AddRows& add) {
  Database& database = *core_->database;
  std::map<int, uint64_t> allowed;
  for (const auto& [number, group] : *groups) {
    SOK_ASSIGN_OR_RETURN(allowed[number], RowLimitAfterArrival(number, group));
  }
  Status status = add([&](RowBatch* batch) {
    Status written = database.WritePending(*batch);
    batch->Clear();
    return written;
  });
  Database::Meta meta;
  if (status.ok() && !core_->unwritten.empty()) {
    SOK_ASSIGN_OR_RETURN(meta, CountAllGroups(database, *core_->expiry));
    meta.insert(core_->unwritten.begin(), core_->unwritten.end());
  }
  for (auto& [number, group] : *groups) {
    if (!status.ok()) break;
    status = CountLive(database, number, *core_->expiry, &group);
    if (status.ok()) status = CheckTakes(number, allowed[number], group.rows);
    meta[GroupMetaName(number)] = group.ToJson();
  }
  return status.ok() ? database.Publish(meta) : status;
}

Result<uint64_t> Storage::RowLimitAfterArrival(int group, const GroupMeta& meta) const {
  const auto open = groups_.find(group);
  if (open == groups_.end() || open->second.spec.eviction.has_value()) return meta.rows;
  const uint64_t most = open->second.spec.max_rows;
  // A table that was opened with a smaller limit than before may hold more rows. Expired rows do
  // not count.
  if (most == 0 || meta.rows <= most || ttl() == 0) return std::max(most, meta.rows);
  GroupMeta live = meta;
  SOK_RETURN_IF_ERROR(CountLive(*core_->database, group, *core_->expiry, &live));
  return std::max(most, live.rows);
}

Status Storage::CheckTakes(int group, uint64_t allowed, uint64_t after) const {
  const auto open = groups_.find(group);
  // With an eviction the next new rows make the table evict others.
  if (open == groups_.end() || open->second.spec.eviction.has_value()) return Status();
  const uint64_t most = open->second.spec.max_rows;
  if (most == 0 || after <= allowed) return Status();
  return Status(Code::kResourceExhausted,
                "group {group} of '{path}' is open with a limit of {most} rows, and would have "
                "{after}; raise its max_rows, or load the file before the group is opened",
                {{"group", group}, {"path", core_->path}, {"most", most}, {"after", after}});
}

void Storage::UpdateAfterArrival(const std::map<int, GroupMeta>& groups) {
  if (!core_->unwritten.empty()) {
    core_->unwritten.clear();
    core_->other_ttl = false;
    core_->expiry->AllowRemoval();
  }
  for (const auto& [number, group] : groups) {
    const auto open = groups_.find(number);
    if (open != groups_.end()) open->second.store->DropCache(group.rows, group.counted_at);
  }
}

Result<uint64_t> Storage::Load(const std::string& path, const DumpProgress& progress) {
  SOK_ASSIGN_OR_RETURN(auto reader, DumpReader::Open(path));
  std::vector<Arrival> arrivals;
  for (const DumpGroup& group : reader->groups()) {
    auto meta = GroupMeta::FromJson(group.meta);
    if (!meta.ok()) {
      return InGroup(path, group.group, meta.status());
    }
    size_t floats = 0;
    for (const Slot& slot : meta.value().state.slots) floats += slot.width;
    if (meta.value().dim != group.dim || floats != static_cast<size_t>(group.slot_floats)) {
      return Status(Code::kDataLoss, "'" + path + "', group " + std::to_string(group.group) +
                                         ": its description does not fit its rows");
    }
    arrivals.push_back({group.group, group.dim, std::move(meta.value())});
  }
  // The first half of the work is to check the file, before anything changes.
  const auto half = [&](uint64_t offset) -> DumpProgress {
    if (!progress) return nullptr;
    return [&progress, offset](uint64_t done, uint64_t total) {
      return progress(offset * total + done, 2 * total);
    };
  };
  SOK_RETURN_IF_ERROR(CheckDump(*reader, path, half(0)));

  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(ReadyToWrite());
  return TakeInPieces(arrivals, path, [&](const PieceFn& take, bool reports) {
    return reader->ForEachPiece(take, reports ? half(1) : nullptr);
  });
}

Result<uint64_t> Storage::TakeInPieces(const std::vector<Arrival>& arrivals,
                                       const std::string& path, const WalkFile& walk) {
  SOK_ASSIGN_OR_RETURN(auto groups, Reconcile(arrivals, path));
  const std::map<int, GroupMeta> targets = groups;
  const uint32_t now = core_->expiry->Now();
  uint64_t taken = 0;
  SOK_RETURN_IF_ERROR(TakeIn(std::move(groups), [&](const auto& write) {
    RowBatch batch;
    const Status walked = walk(
        [&](int number, const TableContents& piece) {
          const GroupMeta& group = targets.at(number);
          const RowColumns& rows = piece.rows;
          const size_t dim = group.dim, slot_floats = piece.slot_floats;
          const bool has_slots = slot_floats > 0 || group.state.slots.empty();
          const RowLayout layout = LayoutOf(group);
          std::vector<float> floats(dim + layout.slot_start().size());
          std::vector<char> values(layout.value_bytes());
          const size_t bytes = has_slots ? values.size() : layout.embedding_bytes();
          for (size_t i = 0; i < piece.n; ++i) {
            // A time that lies in the future becomes `now`, as in Table::Restore: clocks of
            // machines differ.
            const auto num = rows.update_nums ? static_cast<uint32_t>(rows.update_nums[i]) : 0;
            const uint32_t time = TimeOf(rows, i, now);
            if (core_->expiry->Expired(time, now)) continue;
            ++taken;
            std::copy_n(rows.embeddings + i * dim, dim, floats.begin());
            if (slot_floats > 0) {
              std::copy_n(rows.slots + i * slot_floats, slot_floats, floats.begin() + dim);
            }
            layout.EncodeNearest(floats.data(), values.data());
            const RowHeader header{RowHeader::VersionOf(group.form),
                                   static_cast<uint32_t>(dim),
                                   has_slots ? group.layout : kNoLayout,
                                   {num, std::min(time, now)}};
            batch.Put(RowKey(number, rows.keys[i]), header, {values.data(), bytes});
          }
          return batch.bytes() < kBatchBytes ? Status() : write(&batch);
        },
        /*reports=*/true);
    return walked.ok() ? write(&batch) : walked;
  }));
  ForgetWaiting(targets, now, walk);
  return taken;
}

void Storage::ForgetWaiting(const std::map<int, GroupMeta>& targets, uint32_t now,
                            const WalkFile& walk) {
  const auto admission_of = [this](int number) -> Admission* {
    const auto open = groups_.find(number);
    return open == groups_.end() ? nullptr : open->second.admission.get();
  };
  if (std::none_of(targets.begin(), targets.end(),
                   [&](const auto& target) { return admission_of(target.first) != nullptr; })) {
    return;
  }
  // The rows are loaded. A count that is not forgotten only costs memory.
  const Status ignored = OrNoMemory([&] {
    return walk(
        [&](int number, const TableContents& piece) {
          Admission* const admission = admission_of(number);
          for (size_t i = 0; admission != nullptr && i < piece.n; ++i) {
            if (core_->expiry->Expired(TimeOf(piece.rows, i, now), now)) continue;
            admission->Forget(piece.rows.keys + i, 1);
          }
          return Status();
        },
        /*reports=*/false);
  });
  static_cast<void>(ignored);
}

Result<uint64_t> Storage::LoadDamo(const std::string& path, const DumpProgress& progress) {
  SOK_ASSIGN_OR_RETURN(auto reader, DamoDumpReader::Open(path));
  std::vector<Arrival> arrivals;
  for (const DamoGroup& group : reader->groups()) {
    arrivals.push_back({group.group, group.dim, std::nullopt});
  }
  SOK_RETURN_IF_ERROR(CheckDamoDump(*reader, path));

  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(ReadyToWrite());
  return TakeInPieces(arrivals, path, [&](const PieceFn& take, bool reports) {
    return reader->ForEachPiece(take, reports ? progress : nullptr);
  });
}

}  // namespace sok
