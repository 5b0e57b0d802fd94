#include "core/storage/storage.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <shared_mutex>
#include <utility>

#include "core/base/forked_child.h"
#include "core/disk/disk_store.h"
#include "core/disk/flat_json.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/storage/checkpoint_place.h"
#include "core/storage/storage_count.h"
#include "core/storage/storage_journal.h"

namespace sok {
namespace {

constexpr int kFormat = 1;
constexpr char kStorageName[] = "storage";
constexpr uint64_t kLeastCache = uint64_t{1} << 20;
// What the places of spilled rows may take.
constexpr uint64_t kLeastSpillIndex = uint64_t{32} << 20;
constexpr uint64_t kBytesAPlace = 20;
// A flush below this goes through RocksDB's log in one batch.
constexpr uint64_t kBatchBytes = uint64_t{16} << 20;

std::mutex& RegistryMutex() {
  static std::mutex mu;
  return mu;
}

std::map<FolderIdentity, std::weak_ptr<Storage>>& Registry() {
  static auto* registry = new std::map<FolderIdentity, std::weak_ptr<Storage>>;
  return *registry;
}

std::string AdmissionName(int group) {
  char name[20];
  std::snprintf(name, sizeof(name), "admission/%03d/", group);
  return name;
}

std::string ChunkName(int group, uint32_t chunk) {
  char name[12];
  std::snprintf(name, sizeof(name), "%08x", chunk);
  return AdmissionName(group) + name;
}

// The id of a storage goes with its rows, into checkpoints too, and says which journal is its own.
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

// 0 of a description that has none.
uint64_t IdIn(const std::string& description) {
  const auto json = FlatJson::Parse(description);
  std::string id;
  if (!json.has_value() || !json->Get("/id", &id)) return 0;
  return std::strtoull(id.c_str(), nullptr, 16);
}

// Writes down what the storage is, unless it stands there already. Rows that had expired may live
// under another TTL, and the other way round, so they are counted anew.
Status Describe(Database* database, const Expiry& expiry, uint64_t id,
                const std::string& description) {
  const std::string text = "{\"format\":" + std::to_string(kFormat) +
                           ",\"ttl\":" + std::to_string(expiry.ttl()) + ",\"id\":\"" + IdText(id) +
                           "\"}";
  if (description == text) return Status();
  NamedValues values;
  const auto before = FlatJson::Parse(description);
  uint32_t ttl = 0;
  if (before.has_value() && (!before->Get("/ttl", &ttl) || ttl != expiry.ttl())) {
    auto counted = CountAllGroups(*database, expiry);
    if (!counted.ok()) return counted.status();
    values = std::move(counted.value());
  }
  values[kStorageName] = text;
  return database->WritePublished({}, values, /*sync=*/true);
}

bool SameAdmission(const AdmissionConfig& a, const AdmissionConfig& b) {
  if (a.kind != b.kind || a.min_count != b.min_count) return false;
  return a.kind == "frequency" ||
         (a.capacity == b.capacity && a.false_positive_rate == b.false_positive_rate &&
          a.counter_bits == b.counter_bits);
}

}  // namespace

Result<std::shared_ptr<Storage>> Storage::Open(const StorageOptions& options) {
  if (options.path.empty()) return InvalidArgument("expected a folder for the storage, got ''");
  if (options.cache_bytes < kLeastCache) {
    return InvalidArgument("expected cache_bytes of at least " + std::to_string(kLeastCache) +
                           ", got " + std::to_string(options.cache_bytes));
  }
  if (Status status = StartBackgroundThreads(); !status.ok()) return status;
  // What the folder says of itself is read before rows can expire.
  std::optional<uint32_t> ttl = options.ttl;
  std::string description;
  uint32_t folder_ttl = ttl.value_or(0);  // by which its rows were counted
  const Database::Opener open_database =
      options.open_database ? options.open_database : RowDatabase::Open;
  auto core = std::make_shared<StorageCore>(0, nullptr, options.cache_bytes);
  for (bool settled = false; !settled;) {
    core = std::make_shared<StorageCore>(ttl.value_or(0), options.now, options.cache_bytes);
    core->path = options.path;
    core->read_only = options.read_only;
    auto database = open_database({options.path, options.read_only, core->expiry});
    if (!database.ok()) return database.status();
    core->database = std::move(database.value());
    auto stored = core->database->ReadMeta(kStorageName);
    if (!stored.ok()) return stored.status();
    settled = ttl.has_value() || stored.value().empty();
    if (stored.value().empty()) continue;
    description = stored.value().begin()->second;
    const auto json = FlatJson::Parse(description);
    int64_t format = 0;
    uint32_t stored_ttl = 0;
    if (!json.has_value() || !json->Get("/format", &format) || !json->Get("/ttl", &stored_ttl)) {
      return Status(Code::kDataLoss, "the description of the storage '" + options.path +
                                         "' is damaged: " + description);
    }
    if (format != kFormat) {
      return InvalidArgument("expected a storage in format " + std::to_string(kFormat) + ", got " +
                             std::to_string(format) + " in '" + options.path +
                             "'; a newer sok-embed made it");
    }
    folder_ttl = stored_ttl;
    if (ttl.has_value()) {
      core->other_ttl = options.read_only && stored_ttl != *ttl;
      break;
    }
    ttl = stored_ttl;
    settled = *ttl == 0;  // as it was opened
    if (!settled) core->database.reset();
  }
  const uint64_t spill_index = std::max(kLeastSpillIndex, options.cache_bytes / 4);
  auto spill =
      SpillFile::Open(options.path, options.spill_rows.value_or(spill_index / kBytesAPlace));
  if (!spill.ok() && !options.read_only) return spill.status();
  if (spill.ok()) core->spill = std::move(spill.value());
  core->id = IdIn(description);
  auto next_segment =
      TakeInJournal(core->database.get(), Expiry(folder_ttl, nullptr), core->id, options.read_only);
  if (!next_segment.ok()) return next_segment.status();
  if (!options.read_only) {
    RemoveUnfinishedCheckpoints(options.path);
    if (core->id == 0) core->id = NewId();
    Status status = Describe(core->database.get(), *core->expiry, core->id, description);
    if (!status.ok()) return status;
    core->expiry->AllowRemoval();
  }
  if (options.write_through && !options.read_only) {
    core->journal = std::make_unique<Journal>(options.path, core->id, next_segment.value(),
                                              options.journal_bytes);
  }
  std::shared_ptr<Storage> storage(new Storage(core));
  storage->SetResetSlots(options.reset_slots);
  core->flush = [raw = storage.get()] { return raw->FlushAtRest(); };
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

Storage::~Storage() {
  if (ForkedFromBackgroundThreads()) {
    // Its files and their lock are the parent's. Nothing is written, and the database never freed.
    new std::shared_ptr<StorageCore>(core_);
    return;
  }
  Status status;
  try {
    status = Close();
  } catch (const std::exception& error) {  // of memory, most likely
    status = Status(Code::kInternal, error.what());
  }
  {
    const Gate gate(core_->gate);
    core_->flush = nullptr;
    core_->resolve = nullptr;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "sok_embed: what was not flushed is lost: %s\n", status.message().c_str());
  }
}

bool Storage::closed() {
  std::shared_lock<SharedMutex> gate(core_->gate);
  return core_->database == nullptr;
}

Status Storage::CheckSame(const OpenGroup& open, const TableConfig& config, const std::string& rule,
                          const std::optional<AdmissionConfig>& admission) const {
  const std::string group = "group " + std::to_string(config.group) + " of '" + path() + "'";
  if (!core_->read_only && !rule.empty() && !open.rule.empty() && rule != open.rule) {
    return InvalidArgument(
        "{group} is open with optimizer '{open}', got '{got}'; give the other optimizer a group of "
        "its own",
        {{"group", group}, {"open", RuleName{open.rule}}, {"got", RuleName{rule}}});
  }
  const TableConfig& was = open.config;
  if (was.initializer != config.initializer || was.initializer_a != config.initializer_a ||
      was.initializer_b != config.initializer_b || was.seed != config.seed) {
    return InvalidArgument(
        group + " is open with initializer '" + was.initializer + "' (" +
        std::to_string(was.initializer_a) + ", " + std::to_string(was.initializer_b) + ", seed " +
        std::to_string(was.seed) + "), got '" + config.initializer + "' (" +
        std::to_string(config.initializer_a) + ", " + std::to_string(config.initializer_b) +
        ", seed " + std::to_string(config.seed) + ")");
  }
  if (was.max_rows != config.max_rows) {
    return InvalidArgument(group + " is open with a limit of " + std::to_string(was.max_rows) +
                           " rows, got " + std::to_string(config.max_rows) +
                           " (0: none); use the same everywhere");
  }
  const bool admits = open.admission != nullptr;
  if (admission.has_value() != admits ||
      (admits && !SameAdmission(*admission, open.admission->config()))) {
    return InvalidArgument(group + " is open with another admission; use the same everywhere");
  }
  return Status();
}

Result<std::shared_ptr<Admission>> Storage::OpenAdmission(int group,
                                                          const AdmissionConfig& config) {
  auto made = MakeAdmission(config);
  if (!made.ok()) return made.status();
  std::shared_ptr<Admission> admission = std::move(made.value());
  const std::string prefix = AdmissionName(group);
  auto chunks = core_->database->ReadMeta(prefix);
  if (!chunks.ok()) return chunks.status();
  for (const auto& [name, bytes] : chunks.value()) {
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

Result<std::shared_ptr<Table>> Storage::OpenTable(const TableConfig& config,
                                                  const std::string& rule,
                                                  const std::vector<Hyper>& hypers,
                                                  const std::optional<AdmissionConfig>& admission,
                                                  bool reset_slots) {
  if (config.step_clock) {
    return InvalidArgument(
        "expected a table in memory with step_clock: rows in a storage have the "
        "storage's clock");
  }
  if (config.group < 0 || config.group >= kGroups) {
    return InvalidArgument("expected a group in [0, 256), got " + std::to_string(config.group));
  }
  if (config.direct) {
    return InvalidArgument("a table on disk finds its rows by hash; expected direct to be false");
  }
  const std::string group = "group " + std::to_string(config.group) + " of '" + path() + "'";
  std::lock_guard<std::mutex> guard(mu_);
  auto gate = core_->Enter(/*to_write=*/false);
  if (!gate.ok()) return gate.status();

  const auto open = groups_.find(config.group);
  auto stored = core_->database->ReadMeta(GroupMetaName(config.group));
  if (!stored.ok()) return stored.status();
  GroupMeta meta;
  if (open != groups_.end()) {
    meta = open->second.store->meta();
  } else if (!stored.value().empty()) {
    auto parsed = GroupMeta::FromJson(stored.value().begin()->second);
    if (!parsed.ok()) return parsed.status();
    meta = std::move(parsed.value());
    if (Status status = CountIfOutdated(config.group, &meta); !status.ok()) return status;
  } else if (core_->read_only) {
    return Status(Code::kNotFound,
                  "there is no " + group + ", which was opened read-only, so it cannot be made");
  }
  if (meta.dim != 0 && meta.dim != config.dim) {
    return InvalidArgument(group + " has dimension " + std::to_string(meta.dim) + ", got " +
                           std::to_string(config.dim) + "; give the other a group of its own");
  }
  // Who only reads needs no optimizer.
  const bool other_rule =
      !core_->read_only && !rule.empty() && !meta.state.rule.empty() && meta.state.rule != rule;
  if (other_rule && !reset_slots && !this->reset_slots()) {
    return InvalidArgument(
        "{group} was made with optimizer '{made}', got '{got}'; to read the rows, open the storage "
        "with read_only=True; to train them, give the other optimizer a group of its own, or pass "
        "reset_slots=True, which drops what the first keeps of the rows",
        {{"group", group}, {"made", RuleName{meta.state.rule}}, {"got", RuleName{rule}}});
  }
  if (other_rule && open != groups_.end()) {
    return InvalidArgument(
        "{group} is open with optimizer '{open}', got '{got}'; give the other optimizer a group of "
        "its own, or close the storage before its slots are reset",
        {{"group", group}, {"open", RuleName{meta.state.rule}}, {"got", RuleName{rule}}});
  }
  if (open != groups_.end()) {
    Status status = CheckSame(open->second, config, rule, admission);
    if (!status.ok()) return status;
    return open->second.table;
  }

  meta.dim = config.dim;
  meta.initializer = config.initializer;
  meta.initializer_a = config.initializer_a;
  meta.initializer_b = config.initializer_b;
  meta.seed = config.seed;
  if (!rule.empty()) {
    auto optimizer = MakeRowOptimizer(rule, hypers);
    if (!optimizer.ok()) return optimizer.status();
    if ((meta.state.rule.empty() || other_rule) && !core_->read_only) {
      meta.state = {rule, optimizer.value()->slots(config.dim), 0};
      if (meta.rows > 0 || other_rule) ++meta.layout;  // those rows have no slots
    }
  }
  OpenGroup made{nullptr, nullptr, config, rule, nullptr};
  if (admission.has_value()) {
    auto opened = OpenAdmission(config.group, *admission);
    if (!opened.ok()) return opened.status();
    made.admission = std::move(opened.value());
  }
  auto store = std::make_unique<DiskStore>(core_, config.group, meta);
  made.store = store.get();
  auto table = Table::Over(std::move(store), config, meta.state, core_->expiry, made.admission,
                           KeptSlots{group, reset_slots_});
  if (!table.ok()) return table.status();
  made.table = std::move(table.value());
  // From here on nothing can be wrong with the arguments.
  if (other_rule) {
    gate.value().unlock();  // mu_ keeps the storage open, and the group closed
    // Which publishes the description, too: a record of it could fail when it has happened.
    if (Status status = ResetSlots(config.group, meta); !status.ok()) return status;
    gate.value().lock();
  } else if (core_->journal != nullptr) {
    if (core_->journal->broken()) {  // by an earlier call; a flush mends it
      gate.value().unlock();
      gate = core_->Enter(/*to_write=*/true);
      if (!gate.ok()) return gate.status();
    }
    if (Status status = made.store->RecordMeta(); !status.ok()) return status;
  }
  return groups_.emplace(config.group, std::move(made)).first->second.table;
}

Status Storage::Ready() {
  if (core_->database != nullptr && !core_->read_only &&
      (core_->database->failed() || core_->resolve)) {
    const Status mended = core_->Recover();
    if (!mended.ok() && (!core_->database->usable() || core_->resolve)) return mended;
  }
  return core_->CheckOpen();
}

Status Storage::ResetSlots(int group, const GroupMeta& meta) {
  const Gate gate(core_->gate);
  // Nothing is pending from here on, so that what is published below is all there is.
  if (Status status = FlushAtRest(); !status.ok()) return status;
  const uint64_t in_doubt = core_->database->writes_in_doubt();
  Resolution resolution = ResolutionOf([] {});  // nothing in memory knows of the group
  const Status status = OrNoMemory([&] { return PublishWithoutSlots(group, meta); });
  if (status.ok() || core_->database->writes_in_doubt() == in_doubt) return status;
  return Resolve(status, std::move(resolution));
}

Status Storage::PublishWithoutSlots(int group, const GroupMeta& meta) {
  const auto publication = core_->database->StartPublication();
  std::vector<float> embedding(meta.dim);
  Status status = core_->database->ForEach(group, [&](int, Key key, std::string_view bytes) {
    RowValue value;
    if (!value.Parse(bytes, meta.dim)) return DamagedRow(group, key, path());
    std::memcpy(embedding.data(), value.floats, embedding.size() * sizeof(float));
    // Rules that count the updates of each row begin at its first.
    value.header.meta.update_num = 0;
    return publication->Add(RowKey(group, key), value.header, embedding.data(), embedding.size());
  });
  if (!status.ok()) return status;
  return publication->Finish({{GroupMetaName(group), meta.ToJson()}});
}

Status Storage::SettleAtRest() {
  for (auto& [number, group] : groups_) {
    Status status = group.store->Settle();
    if (!status.ok()) return status;
  }
  return Status();
}

Status Storage::FlushAtRest() {
  if (core_->database == nullptr) return core_->CheckOpen();
  if (core_->read_only) return Status();
  return core_->WriteAtRest([this] { return FlushOnce(); });
}

Status Storage::FlushOnce() {
  Database& database = *core_->database;
  Status status = database.CheckFolder();
  if (status.ok()) status = core_->Recover();
  if (!status.ok()) return status;
  Database::Meta meta;
  uint64_t dirty = 0;
  for (auto& [number, group] : groups_) {
    meta[GroupMetaName(number)] = group.store->meta().ToJson();
    dirty += group.store->DirtyBytes();
    if (group.admission == nullptr) continue;
    for (uint32_t chunk : group.admission->ChangedChunks()) {
      auto bytes = group.admission->Dump(chunk);
      if (!bytes.ok()) return bytes.status();
      meta[ChunkName(number, chunk)] = std::move(bytes.value());
    }
  }
  Journal* const journal = core_->journal.get();
  const bool has_journal = journal != nullptr && (!journal->empty() || journal->broken());
  // What comes later goes to another segment: the database may have this number also if the flush
  // fails, and be opened again with it.
  const uint64_t journal_number = has_journal ? journal->EndSegment() : 0;
  if (has_journal) meta[kJournalName] = std::to_string(journal_number);
  if (!database.has_pending() && dirty <= kBatchBytes) {
    RowBatch batch;
    for (auto& [number, group] : groups_) {
      if (!status.ok()) break;
      status = group.store->ForEachDirty(
          [&, number = number](Key key, const RowHeader& header, const float* floats, size_t n) {
            batch.Put(RowKey(number, key), header, floats, n);
            return Status();
          });
    }
    if (status.ok()) status = database.WritePublished(batch, meta, /*sync=*/true);
  } else {
    const auto publication = database.StartPublication();
    for (auto& [number, group] : groups_) {
      if (!status.ok()) break;
      status = group.store->ForEachDirty(
          [&, number = number](Key key, const RowHeader& header, const float* floats, size_t n) {
            return publication->Add(RowKey(number, key), header, floats, n);
          });
    }
    if (status.ok()) status = publication->Finish(meta);
  }
  if (!status.ok()) return status;
  if (has_journal) journal->DropThrough(journal_number);
  for (auto& [number, group] : groups_) group.store->MarkClean();
  for (auto& [number, group] : groups_) {
    if (group.admission != nullptr) group.admission->MarkSaved();
  }
  return Status();
}

Status Storage::Flush() {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  return FlushAtRest();
}

Status Storage::Checkpoint(const std::string& path) {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  Status status = FlushAtRest();
  return status.ok() ? MakeCheckpoint(*core_->database, core_->path, path) : status;
}

Status Storage::Compact() {
  Status status = Flush();
  if (!status.ok()) return status;
  // Not under the gate, where lookups would wait behind the next flush; mu_ keeps it open.
  std::lock_guard<std::mutex> guard(mu_);
  {
    const Gate gate(core_->gate);
    status = ReadyToWrite();
  }
  if (status.ok()) status = core_->database->Compact();
  return status.ok() && ttl() > 0 ? CountRows() : status;
}

Status Storage::ReadyToWrite() {
  if (Status status = Ready(); !status.ok()) return status;
  if (!core_->read_only) return core_->database->CheckFolder();
  return Status(Code::kPermissionDenied,
                "the storage '" + path() + "' was opened read-only; open it for writing");
}

Status Storage::Close() {
  std::lock_guard<std::mutex> guard(mu_);
  const Gate gate(core_->gate);
  if (core_->database == nullptr) return Status();
  Status status = FlushAtRest();
  if (!status.ok()) return status;
  for (auto& [number, group] : groups_) group.store->DropCache(0, 0);
  core_->database.reset();
  core_->journal.reset();
  groups_.clear();
  return Status();
}

}  // namespace sok
