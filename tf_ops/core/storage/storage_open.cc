// Opening a storage and its groups.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include "core/base/file_error.h"
#include "core/base/flat_json.h"
#include "core/base/forked_child.h"
#include "core/base/status_macros.h"
#include "core/disk/disk_store.h"
#include "core/disk/open_folders.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/storage/admission_names.h"
#include "core/storage/checkpoint_place.h"
#include "core/storage/group_start.h"
#include "core/storage/storage.h"
#include "core/storage/storage_count.h"
#include "core/storage/storage_journal.h"

namespace sok {
namespace {

constexpr int kFormat = 1;
constexpr char kStorageName[] = "storage";
constexpr uint64_t kLeastCache = uint64_t{1} << 20;
// The least memory for the places of spilled rows, in bytes.
constexpr uint64_t kLeastSpillIndex = uint64_t{32} << 20;
constexpr uint64_t kBytesAPlace = HashIndex::kBytesAKey + 2;  // see Spill
std::mutex& RegistryMutex() {
  static std::mutex mu;
  return mu;
}

std::map<FolderIdentity, std::weak_ptr<Storage>>& Registry() {
  static auto* registry = new std::map<FolderIdentity, std::weak_ptr<Storage>>;
  return *registry;
}

// Draws the id of a storage, which stays with its rows, in checkpoints too, or the number of an
// opening. Both show which journal belongs to a folder.
uint64_t NewId() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = uint64_t{random()} << 32 | random();
  return id;
}

std::string IdText(uint64_t id) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(id));
  return text;
}

// Returns the id in a description; 0 if it has none.
uint64_t IdIn(const std::string& description) {
  const auto json = FlatJson::Parse(description);
  std::string id;
  if (!json.has_value() || !json->Get("/id", &id)) return 0;
  return std::strtoull(id.c_str(), nullptr, 16);
}

// Writes the description of the storage, unless the folder has it. Under another TTL other rows
// have expired, so rows are counted anew.
std::string TextOf(const Expiry& expiry, uint64_t id) {
  return "{\"format\":" + std::to_string(kFormat) + ",\"ttl\":" + std::to_string(expiry.ttl()) +
         ",\"id\":\"" + IdText(id) + "\"}";
}

Status Describe(Database* database, const Expiry& expiry, uint64_t id,
                const std::string& description) {
  const std::string text = TextOf(expiry, id);
  if (description == text) return Status();
  NamedValues values;
  const auto before = FlatJson::Parse(description);
  uint32_t ttl = 0;
  if (before.has_value() && (!before->Get("/ttl", &ttl) || ttl != expiry.ttl())) {
    SOK_ASSIGN_OR_RETURN(values, CountAllGroups(*database, expiry));
  }
  values[kStorageName] = text;
  return database->WritePublished({}, values, /*sync=*/true);
}

Status CheckOnDisk(const TableSpec& spec) {
  if (spec.gpu >= 0) {
    return InvalidArgument("Expected the rows of a storage in the host's memory. Received: gpu=" +
                           std::to_string(spec.gpu) +
                           ". Leave the storage out, or use device=\"cpu\".");
  }
  if (spec.step_clock) {
    return InvalidArgument(
        "expected a table in memory with step_clock: rows in a storage have the "
        "storage's clock");
  }
  if (spec.group < 0 || spec.group >= Storage::kGroups) {
    return InvalidArgument("expected a group in [0, 256), got " + std::to_string(spec.group));
  }
  if (spec.direct) {
    return InvalidArgument("a table on disk finds its rows by hash; expected direct to be false");
  }
  return Status();
}

// Returns the error for a group whose rows have the slots of another rule than the one that it is
// opened with.
Status OtherRule(const std::string& group, int number, const std::string& trained,
                 const std::string& rule, bool is_open) {
  if (is_open) {
    return InvalidArgument(
        "{group} is open with optimizer '{open}', got '{got}'; give the other optimizer a group of "
        "its own, or close the storage before its slots are reset",
        {{"group", group}, {"open", RuleName{trained}}, {"got", RuleName{rule}}});
  }
  return InvalidArgument(
      "{group} was made with optimizer '{made}', got '{got}'; to look at rows or to remove some, "
      "storage.table({number}) needs no optimizer; to train them, go on with '{made}', or give "
      "'{got}' a group of its own; reset_slots=True has '{got}' take the rows over, and loses for "
      "good what '{made}' keeps of them",
      {{"group", group},
       {"made", RuleName{trained}},
       {"got", RuleName{rule}},
       {"number", std::to_string(number)}});
}

// Sets initializer, admission and eviction in the description of a group. If the group is opened
// without an admission, the counts and the config of an earlier one stay.
void DescribeAs(const TableSpec& spec, GroupMeta* meta) {
  meta->dim = spec.dim;
  meta->initializer = spec.initializer;
  meta->initializer_a = spec.initializer_a;
  meta->initializer_b = spec.initializer_b;
  meta->seed = spec.seed;
  meta->form = spec.form;
  if (spec.admission.has_value()) meta->admission = spec.admission;
  meta->eviction = spec.eviction;
}

// Sets the rule in the description, unless it has this rule.
void DescribeRule(const std::string& rule, const RowOptimizer& optimizer, bool other_rule,
                  GroupMeta* meta) {
  if (!meta->state.rule.empty() && !other_rule) return;
  meta->state = {rule, optimizer.slots(meta->dim), 0};
  // The present rows have no slots under the new layout. This is needed even if no row counts: with
  // a longer TTL, or an earlier clock, expired rows may count again.
  ++meta->layout;
}

// A folder's database, and the description of the storage in the folder.
struct OpenedFolder {
  std::shared_ptr<StorageCore> core;
  std::string description;  // empty for a new folder
  uint32_t ttl = 0;         // by which its rows were counted; what was asked for, if it is new
};

Status ReadDescription(const std::string& path, const std::string& description, uint32_t* ttl) {
  const auto json = FlatJson::Parse(description);
  int64_t format = 0;
  if (!json.has_value() || !json->Get("/format", &format) || !json->Get("/ttl", ttl)) {
    return Status(Code::kDataLoss,
                  "the description of the storage '" + path + "' is damaged: " + description);
  }
  if (format == kFormat) return Status();
  return InvalidArgument("expected a storage in format " + std::to_string(kFormat) + ", got " +
                         std::to_string(format) + " in '" + path + "'; a newer sok-embed made it");
}

Result<OpenedFolder> OpenFolder(const StorageOptions& options, uint32_t ttl) {
  OpenedFolder opened;
  opened.ttl = options.ttl.value_or(0);
  opened.core = std::make_shared<StorageCore>(ttl, options.now, options.cache_bytes);
  opened.core->path = options.path;
  opened.core->read_only = options.read_only;
  const Database::Opener open = options.open_database ? options.open_database : RowDatabase::Open;
  opened.core->written = std::make_shared<WrittenNote>(options.path);
  const auto check = [path = options.path, note = opened.core->written](
                         const std::map<std::string, std::string>& meta) -> Status {
    const auto text = [&](const char* name) {
      const auto found = meta.find(name);
      return found == meta.end() ? std::string() : found->second;
    };
    const std::string description = text(kStorageName);
    if (description.empty()) return Status();
    uint32_t stated;
    SOK_RETURN_IF_ERROR(ReadDescription(path, description, &stated));
    return ReadJournal(path, IdIn(description), text(kJournalName), text(kHistoryName), *note)
        .status();
  };
  SOK_ASSIGN_OR_RETURN(
      opened.core->database,
      open({options.path, options.read_only, opened.core->expiry, options.cache_bytes,
            /*opening=*/NewId(), check, kFormat, opened.core->written}));
  SOK_ASSIGN_OR_RETURN(auto stored, opened.core->database->ReadMeta(kStorageName));
  if (!stored.empty()) {
    opened.description = stored.begin()->second;
    SOK_RETURN_IF_ERROR(ReadDescription(options.path, opened.description, &opened.ttl));
  } else {
    // The first of the named values is the description.
    SOK_ASSIGN_OR_RETURN(const auto others, opened.core->database->ReadMeta(""));
    if (!others.empty()) {
      return Status(Code::kDataLoss, "the storage '" + options.path + "' is damaged: it has '" +
                                         others.begin()->first + "', and no description" +
                                         kRestore);
    }
  }
  return opened;
}

// Opens the folder with the TTL of the options, or with the folder's own.
Result<OpenedFolder> OpenFolder(const StorageOptions& options) {
  uint32_t ttl = options.ttl.value_or(0);
  for (;;) {
    auto opened = OpenFolder(options, ttl);
    if (!opened.ok()) return opened;
    const uint32_t stated = opened.value().ttl;
    if (options.ttl.has_value()) {
      opened.value().core->other_ttl = options.read_only && stated != ttl;
      return opened;
    }
    if (stated == ttl) return opened;
    // The TTL must be known before rows can expire, so the folder is opened anew with its own TTL.
    // Another process may have changed it meanwhile; then the folder's new TTL counts.
    opened.value().core->database.reset();
    ttl = stated;
  }
}

}  // namespace

Result<std::shared_ptr<Storage>> Storage::Open(const StorageOptions& options) {
  if (options.path.empty()) return InvalidArgument("expected a folder for the storage, got ''");
  if (options.cache_bytes < kLeastCache) {
    return InvalidArgument("expected cache_bytes of at least " + std::to_string(kLeastCache) +
                           ", got " + std::to_string(options.cache_bytes));
  }
  SOK_RETURN_IF_ERROR(StartBackgroundThreads());
  SOK_ASSIGN_OR_RETURN(auto opened, OpenFolder(options));
  const std::shared_ptr<StorageCore> core = opened.core;
  const std::string& description = opened.description;
  const uint64_t spill_index = std::max(kLeastSpillIndex, options.cache_bytes / 5);
  auto spill =
      SpillFile::Open(options.path, options.spill_rows.value_or(spill_index / kBytesAPlace));
  if (!spill.ok() && !options.read_only) return spill.status();
  if (spill.ok()) core->spill = std::move(spill.value());
  core->id = IdIn(description);
  SOK_ASSIGN_OR_RETURN(auto state, core->database->ReadMeta(kHistoryName));
  const History history = History::FromText(state[kHistoryName]);
  SOK_ASSIGN_OR_RETURN(
      auto next_segment,
      ReplayJournal(core->database.get(), Expiry(opened.ttl, options.now), core->id,
                    state[kHistoryName], options.read_only, core->written.get()));
  if (options.read_only) {
    SOK_ASSIGN_OR_RETURN(const auto segments, JournalSegments(options.path));
    for (uint64_t segment : segments) {
      if (segment >= next_segment) break;
      const std::string name = JournalSegmentName(segment);
      const uint64_t bytes = core->written->files()[name].bytes;
      core->shown_journal[name] = {bytes, bytes, 0};  // a checkpoint has them on the device
    }
  }
  if (!options.read_only) {
    RemoveUnfinishedCheckpoints(options.path);
    if (core->id == 0) core->id = NewId();
    if (options.ttl_with_load && !description.empty() && opened.ttl != core->expiry->ttl()) {
      core->other_ttl = true;
      core->unwritten[kStorageName] = TextOf(*core->expiry, core->id);
    } else {
      SOK_RETURN_IF_ERROR(Describe(core->database.get(), *core->expiry, core->id, description));
      core->expiry->AllowRemoval();
    }
  }
  if (options.write_through && !options.read_only) {
    core->journal = std::make_unique<Journal>(
        options.path, core->id, next_segment, options.journal_bytes, options.sync,
        [database = core->database.get()] { return database->history(); }, history, core->written);
  }
  core->ChargeDatabase();
  std::shared_ptr<Storage> storage(new Storage(core));
  storage->batch_bytes_ = options.batch_bytes;
  storage->SetResetSlots(options.reset_slots);
  storage->SetResetInitializer(options.reset_initializer);
  core->flush = [raw = storage.get()] { return raw->FlushAtRest(); };
  core->ask_flush = [raw = storage.get()] {
    if (!raw->flusher_.busy()) static_cast<void>(raw->flusher_.Ask());
  };
  std::lock_guard<std::mutex> guard(RegistryMutex());
  Registry()[IdentityOf(options.path)] = storage;
  return storage;
}

std::shared_ptr<Storage> Storage::FindOpen(const std::string& path) {
  std::shared_ptr<Storage> storage;
  {
    std::lock_guard<std::mutex> guard(RegistryMutex());
    const auto found = Registry().find(IdentityOf(path));
    if (found != Registry().end()) storage = found->second.lock();
  }
  return storage != nullptr && !storage->closed() ? storage : nullptr;
}

Status Storage::CheckSame(const OpenGroup& open, const TableSpec& spec,
                          const std::string& rule) const {
  const std::string group = "group " + std::to_string(spec.group) + " of '" + path() + "'";
  if (!core_->read_only && !rule.empty() && !open.rule.empty() && rule != open.rule) {
    return InvalidArgument(
        "{group} is open with optimizer '{open}', got '{got}'; give the other optimizer a group of "
        "its own",
        {{"group", group}, {"open", RuleName{open.rule}}, {"got", RuleName{rule}}});
  }
  const TableSpec& was = open.spec;
  if (!SameStart(was, spec)) {
    return InvalidArgument(group + " is open with the initializer " + StartText(was) + ", got " +
                           StartText(spec) +
                           "; use the same everywhere; to look at rows or to remove some, "
                           "storage.table(" +
                           std::to_string(spec.group) + ") needs none");
  }
  if (was.max_rows != spec.max_rows) {
    return InvalidArgument(group + " is open with a limit of " + std::to_string(was.max_rows) +
                           " rows, got " + std::to_string(spec.max_rows) +
                           " (0: none); use the same everywhere");
  }
  if (was.admission.has_value() != spec.admission.has_value() ||
      (spec.admission.has_value() && !SameAdmission(*was.admission, *spec.admission))) {
    return InvalidArgument(group + " is open with another admission; use the same everywhere");
  }
  if (was.eviction.has_value() != spec.eviction.has_value() ||
      (spec.eviction.has_value() && !SameEviction(*was.eviction, *spec.eviction))) {
    const auto text = [](const std::optional<EvictionConfig>& config) {
      return config.has_value() ? EvictionToJson(*config) : "none";
    };
    return InvalidArgument(group + " is open with the eviction " + text(was.eviction) + ", got " +
                           text(spec.eviction) + "; use the same everywhere");
  }
  return Status();
}

Result<std::shared_ptr<Admission>> Storage::OpenAdmission(int group,
                                                          const AdmissionConfig& config) {
  SOK_ASSIGN_OR_RETURN(std::shared_ptr<Admission> admission, MakeAdmission(config));
  const std::string prefix = AdmissionName(group);
  SOK_ASSIGN_OR_RETURN(auto chunks, core_->database->ReadMeta(prefix));
  for (const auto& [name, bytes] : chunks) {
    const auto chunk =
        static_cast<uint32_t>(std::strtoul(name.c_str() + prefix.size(), nullptr, 16));
    Status status = admission->Load(chunk, bytes);
    if (!status.ok()) {
      return status.Within("the admission of group " + std::to_string(group) + " of '" + path() +
                           "': ");
    }
  }
  return admission;
}

Result<GroupMeta> Storage::DescriptionOf(int group) {
  const auto open = groups_.find(group);
  if (open != groups_.end()) return open->second.store->meta();
  SOK_ASSIGN_OR_RETURN(auto stored, core_->database->ReadMeta(GroupMetaName(group)));
  if (stored.empty()) {
    return core_->read_only ? NoGroup(group) : Result<GroupMeta>(GroupMeta());
  }
  SOK_ASSIGN_OR_RETURN(auto meta, GroupMeta::FromJson(stored.begin()->second));
  SOK_RETURN_IF_ERROR(CountIfOutdated(group, &meta));
  return meta;
}

Result<Storage::OpenGroup> Storage::MakeGroup(const TableSpec& spec, const std::string& rule,
                                              const GroupMeta& meta) {
  TableSpec own = spec;
  own.form = SeededForm(spec);
  GroupMeta seeded = meta;
  seeded.form = own.form;
  OpenGroup made{nullptr, nullptr, own, rule, nullptr};
  if (spec.admission.has_value()) {
    SOK_ASSIGN_OR_RETURN(made.admission, OpenAdmission(spec.group, *spec.admission));
  }
  auto store = std::make_unique<DiskStore>(core_, spec.group, seeded);
  made.store = store.get();
  const std::string group = "group " + std::to_string(spec.group) + " of '" + path() + "'";
  SOK_ASSIGN_OR_RETURN(made.table, Table::Over(std::move(store), own, meta.state, core_->expiry,
                                               made.admission, KeptSlots{group, reset_slots_}));
  return made;
}

Result<std::shared_ptr<Table>> Storage::OpenTable(const TableSpec& given, const std::string& rule,
                                                  const std::vector<Hyper>& hypers,
                                                  bool reset_slots, bool reset_initializer) {
  SOK_RETURN_IF_ERROR(CheckOnDisk(given));
  TableSpec spec = given;
  const std::string group = "group " + std::to_string(spec.group) + " of '" + path() + "'";
  std::lock_guard<std::mutex> guard(mu_);
  auto gate = core_->Enter(/*to_write=*/false);
  if (!gate.ok()) return gate.status();

  const auto open = groups_.find(spec.group);
  SOK_ASSIGN_OR_RETURN(GroupMeta meta, DescriptionOf(spec.group));
  if (meta.dim != 0 && meta.dim != spec.dim) {
    return InvalidArgument(group + " has dimension " + std::to_string(meta.dim) + ", got " +
                           std::to_string(spec.dim) + "; give the other a group of its own");
  }
  if (meta.dim != 0) SOK_RETURN_IF_ERROR(AgreeOnTypes(group, meta.form, spec.form));
  // A reader needs no optimizer.
  const bool other_rule =
      !core_->read_only && !rule.empty() && !meta.state.rule.empty() && meta.state.rule != rule;
  const bool may_reset = reset_slots || this->reset_slots();
  if (other_rule && (!may_reset || open != groups_.end())) {
    return OtherRule(group, spec.group, meta.state.rule, rule, /*is_open=*/may_reset);
  }
  if (open != groups_.end()) {
    SOK_RETURN_IF_ERROR(CheckSame(open->second, spec, rule));
    return open->second.table;
  }

  const bool may_restart = core_->read_only || reset_initializer || this->reset_initializer();
  SOK_RETURN_IF_ERROR(AgreeOnStart(group, spec.group, meta, may_restart, &spec));
  // A read-only storage keeps the description of the folder, even if its rows start from another
  // initializer here.
  if (!core_->read_only) DescribeAs(spec, &meta);
  if (!rule.empty()) {
    SOK_ASSIGN_OR_RETURN(auto optimizer, MakeRowOptimizer(rule, hypers));
    if (!core_->read_only) DescribeRule(rule, *optimizer, other_rule, &meta);
  }
  SOK_ASSIGN_OR_RETURN(auto made, MakeGroup(spec, rule, meta));
  // The arguments are checked by now. mu_ keeps the storage open, and the group closed, without the
  // gate.
  if (other_rule) {
    gate.value().unlock();
    // ResetSlots publishes the description too, so no record of it is written, which could fail
    // afterwards.
    SOK_RETURN_IF_ERROR(ResetSlots(spec.group, meta));
    gate.value().lock();
  } else if (core_->journal != nullptr) {
    if (core_->journal->broken()) {  // an earlier call has broken it; a flush repairs it
      gate.value().unlock();
      gate = core_->Enter(/*to_write=*/true);
      if (!gate.ok()) return gate.status();
    }
    SOK_RETURN_IF_ERROR(made.store->RecordMeta());
  }
  const std::lock_guard<std::mutex> adding(open_mu_);
  return groups_.emplace(spec.group, std::move(made)).first->second.table;
}

}  // namespace sok
