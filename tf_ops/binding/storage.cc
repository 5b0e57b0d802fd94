#include "core/storage/storage.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <tuple>

#include "binding/binding.h"
#include "binding/row_calls.h"
#include "core/base/thread_pool.h"
#include "core/disk/group_meta.h"
#include "core/storage/storage_folder.h"

namespace sok::binding {
namespace {

void Open(PyStorage* self, nb::handle path, std::optional<uint32_t> ttl, uint64_t cache_bytes,
          bool write_through, bool read_only, bool reset_slots, std::optional<uint64_t> spill_rows,
          bool ttl_with_load, bool sync, bool reset_initializer,
          std::optional<uint64_t> batch_bytes, std::optional<uint32_t> now) {
  StorageOptions options;
  options.path = ToPath(path);
  options.ttl = ttl;
  options.cache_bytes = cache_bytes;
  options.write_through = write_through;
  options.read_only = read_only;
  options.spill_rows = spill_rows;
  options.reset_slots = reset_slots;
  options.ttl_with_load = ttl_with_load;
  options.sync = sync;
  options.reset_initializer = reset_initializer;
  if (batch_bytes.has_value()) options.batch_bytes = *batch_bytes;
  if (now.has_value()) options.now = [now = *now] { return now; };
  new (self) PyStorage{Held<Storage>(Value(Unlocked([&] { return Storage::Open(options); })))};
}

PyStorage* FindOpen(nb::handle path) {
  const std::string folder = ToPath(path);
  auto found = Unlocked([&] { return Storage::FindOpen(folder); });
  return found == nullptr ? nullptr : new PyStorage{Held<Storage>(std::move(found))};
}

PyTable* OpenTable(PyStorage& self, const std::string& spec, const std::string& rule,
                   const NamedNumbers& hypers, bool reset_slots, bool reset_initializer) {
  const TableSpec read = Value(TableSpec::FromJson(spec));
  auto table = Value(Unlocked([&] {
    return self.storage->OpenTable(read, rule, ToHypers(hypers), reset_slots, reset_initializer);
  }));
  return new PyTable(self.storage.shared(), std::move(table));
}

uint64_t Dump(PyStorage& self, nb::handle path, int group, uint32_t min_count,
              std::optional<uint32_t> newer, nb::object callback) {
  Progress progress(std::move(callback));
  const DumpFilter filter{group, min_count, newer};
  const std::string file = ToPath(path);
  auto rows = Unlocked([&] { return self.storage->Dump(file, filter, progress.report()); });
  progress.Rethrow();
  return Value(std::move(rows));
}

template <Result<uint64_t> (Storage::*kLoad)(const std::string&, const DumpProgress&)>
uint64_t Load(PyStorage& self, nb::handle path, nb::object callback) {
  Progress progress(std::move(callback));
  const std::string file = ToPath(path);
  auto rows = Unlocked([&] { return (*self.storage.*kLoad)(file, progress.report()); });
  progress.Rethrow();
  return Value(std::move(rows));
}

std::vector<std::pair<int, std::string>> Groups(PyStorage& self) {
  std::vector<std::pair<int, std::string>> groups;
  for (const GroupInfo& info : Value(Unlocked([&] { return self.storage->Groups(); }))) {
    groups.emplace_back(info.group, info.meta.ToJson());
  }
  return groups;
}

template <typename T, size_t n>
nb::list ToList(const T (&numbers)[n]) {
  nb::list list;
  for (const T& number : numbers) list.append(number);
  return list;
}

nb::dict Survey(PyStorage& self, int group) {
  const GroupSurvey survey = Value(Unlocked([&] { return self.storage->Survey(group); }));
  nb::dict dict;
  dict["rows"] = survey.rows;
  dict["expired"] = survey.expired;
  dict["bytes"] = survey.bytes;
  dict["ages"] = ToList(survey.by_age);
  dict["age_limits"] = ToList(GroupSurvey::kAges);
  dict["updates"] = ToList(survey.by_updates);
  return dict;
}

nb::object Get(PyStorage& self, int group, Key key) {
  auto row = Value(Unlocked([&] { return self.storage->Get(group, key); }));
  if (!row) return nb::none();
  nb::dict dict;
  dict["update_num"] = row->meta.update_num;
  dict["update_time"] = row->meta.update_time;
  dict["floats"] = ToNumpy(std::move(row->floats));
  return dict;
}

// The calls that read and write rows of a group without training it.

std::string Describe(PyStorage& self, int group) {
  return Value(Unlocked([&] { return self.storage->GroupOf(group); })).ToJson();
}

void ReadRows(PyStorage& self, int group, const KeysIn& keys, const FloatsOut& out,
              const FlagsOut& exists) {
  CheckCount(keys);
  const GroupMeta meta = Value(Unlocked([&] { return self.storage->GroupOf(group); }));
  CheckSize("out", out.size(), keys.size() * static_cast<size_t>(meta.dim), "dim a key");
  CheckSize("exists", exists.size(), keys.size(), "one a key");
  Check(Unlocked([&] {
    return self.storage->ReadRows(group, keys.data(), keys.size(), out.data(), exists.data(),
                                  ProcessPool());
  }));
}

void ReadRowMeta(PyStorage& self, int group, const KeysIn& keys, const FlagsOut& exists,
                 const NumbersOut& update_nums, const NumbersOut& update_times) {
  PutMetadata(keys, exists, update_nums, update_times, [&](RowMeta* metas) {
    return self.storage->ReadRowMeta(group, keys.data(), keys.size(), metas, exists.data(),
                                     ProcessPool());
  });
}

uint64_t RemoveRows(PyStorage& self, int group, const KeysIn& keys) {
  CheckCount(keys);
  return Value(Unlocked(
      [&] { return self.storage->RemoveRows(group, keys.data(), keys.size(), ProcessPool()); }));
}

nb::dict RowStats(PyStorage& self, int group) {
  return ToDict(Value(Unlocked([&] { return self.storage->RowStats(group); })));
}

// The keys and the embeddings of a page, and whether it is the last one.
nb::tuple ReadPage(PyStorage& self, int group, Key from, uint64_t most) {
  RowPage page = Value(Unlocked([&] { return self.storage->ReadPage(group, from, most); }));
  return nb::make_tuple(ToNumpy(std::move(page.keys)), ToNumpy(std::move(page.embeddings)),
                        page.last);
}

nb::dict DiskUse(PyStorage& self) {
  const Database::DiskUse use = Value(Unlocked([&] { return self.storage->disk_use(); }));
  nb::dict dict;
  dict["file_bytes"] = use.file_bytes;
  dict["memory_bytes"] = use.memory_bytes;
  dict["key_bytes"] = use.key_bytes;
  dict["filter_bytes"] = use.filter_bytes;
  dict["cached_row_bytes"] = self.storage->cached_row_bytes();
  dict["charged_bytes"] = self.storage->charged_bytes();
  dict["sorted_runs"] = use.runs;
  dict["filtered_keys"] = use.filtered;
  dict["searched_keys"] = use.searched;
  dict["found_keys"] = use.found;
  dict["published_bytes"] = use.published_bytes;
  dict["written_bytes"] = use.written_bytes;
  dict["failed_flushes"] = self.storage->failed_flushes();
  return dict;
}

void BindContents(nb::class_<PyStorage>& storage) {
  storage
      .def("dump", Dump, nb::arg("path"), nb::arg("group") = -1, nb::arg("min_count") = 0,
           nb::arg("newer") = nb::none(), nb::arg("progress") = nb::none())
      .def("load", Load<&Storage::Load>, nb::arg("path"), nb::arg("progress") = nb::none())
      .def("load_damo", Load<&Storage::LoadDamo>, nb::arg("path"), nb::arg("progress") = nb::none())
      .def("groups", Groups)
      .def("survey", Survey, nb::arg("group"))
      .def("get", Get, nb::arg("group"), nb::arg("key"))
      .def("describe", Describe, nb::arg("group"))
      .def("read_rows", ReadRows, nb::arg("group"), nb::arg("keys").noconvert(),
           nb::arg("out").noconvert(), nb::arg("exists").noconvert())
      .def("read_row_meta", ReadRowMeta, nb::arg("group"), nb::arg("keys").noconvert(),
           nb::arg("exists").noconvert(), nb::arg("update_nums").noconvert(),
           nb::arg("update_times").noconvert())
      .def("remove_rows", RemoveRows, nb::arg("group"), nb::arg("keys").noconvert())
      .def("row_stats", RowStats, nb::arg("group"))
      .def("read_page", ReadPage, nb::arg("group"), nb::arg("start"), nb::arg("most"))
      .def("disk_use", DiskUse);
}

}  // namespace

void BindStorage(nb::module_& module) {
  auto storage =
      nb::class_<PyStorage>(module, "Storage")
          .def("__init__", Open, nb::arg("path"), nb::arg("ttl").none(), nb::arg("cache_bytes"),
               nb::arg("write_through"), nb::arg("read_only"), nb::arg("reset_slots") = false,
               nb::arg("spill_rows").none() = nb::none(), nb::arg("ttl_with_load") = false,
               nb::arg("sync") = false, nb::arg("reset_initializer") = false,
               nb::arg("batch_bytes").none() = nb::none(), nb::arg("now").none() = nb::none())
          .def_static("find_open", FindOpen, nb::arg("path"))
          .def_prop_ro("path", [](PyStorage& self) { return FromPath(self.storage->path()); })
          .def_prop_ro("id", [](PyStorage& self) { return self.storage->id(); })
          .def_prop_ro("ttl", [](PyStorage& self) { return self.storage->ttl(); })
          .def_prop_ro("cache_bytes", [](PyStorage& self) { return self.storage->cache_bytes(); })
          .def_prop_ro("read_only", [](PyStorage& self) { return self.storage->read_only(); })
          .def_prop_rw(
              "reset_slots", [](PyStorage& self) { return self.storage->reset_slots(); },
              [](PyStorage& self, bool reset) { self.storage->SetResetSlots(reset); })
          .def_prop_rw(
              "reset_initializer",
              [](PyStorage& self) { return self.storage->reset_initializer(); },
              [](PyStorage& self, bool reset) { self.storage->SetResetInitializer(reset); })
          .def_prop_ro(
              "closed",
              [](PyStorage& self) { return Unlocked([&] { return self.storage->closed(); }); })
          .def(
              "flush",
              [](PyStorage& self, bool wait) {
                Check(Unlocked([&] { return self.storage->Flush(wait); }));
              },
              nb::arg("wait") = true)
          .def_prop_ro("flushing", [](PyStorage& self) { return self.storage->flushing(); })
          .def("close",
               [](PyStorage& self) { Check(Unlocked([&] { return self.storage->Close(); })); })
          .def(
              "checkpoint",
              [](PyStorage& self, nb::handle path) {
                const std::string folder = ToPath(path);
                Check(Unlocked([&] { return self.storage->Checkpoint(folder); }));
              },
              nb::arg("path"))
          .def("compact",
               [](PyStorage& self) { Check(Unlocked([&] { return self.storage->Compact(); })); })
          .def(
              "set_now", [](PyStorage& self, uint32_t now) { self.storage->SetNow(now); },
              nb::arg("now"))
          .def("open_table", OpenTable, nb::arg("spec"), nb::kw_only(), nb::arg("rule") = "",
               nb::arg("hypers") = NamedNumbers(), nb::arg("reset_slots") = false,
               nb::arg("reset_initializer") = false);
  BindContents(storage);
  module.def(
      "holds_storage", [](nb::handle path) { return HoldsStorage(ToPath(path)); }, nb::arg("path"));
  module.def(
      "file_bytes", [](nb::handle path) { return FileBytes(ToPath(path)); }, nb::arg("path"));
}

}  // namespace sok::binding
