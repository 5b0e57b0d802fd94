// Dumps of storages, read and written in pieces.
#include <nanobind/stl/tuple.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "binding/binding.h"
#include "binding/row_calls.h"
#include "core/disk/group_meta.h"
#include "core/dump/dump_checks.h"
#include "core/dump/dump_file.h"

namespace sok::binding {
namespace {

struct PyDumpReader {
  std::unique_ptr<DumpReader> reader;
};

struct PyDumpWriter {
  std::unique_ptr<DumpWriter> writer;
};

// One group of a dump: its number, dim, slot floats, rows and description.
using DumpedGroup = std::tuple<int, int, int, uint64_t, std::string>;

void OpenReader(PyDumpReader* self, nb::handle given) {
  const std::string path = ToPath(given);
  auto reader = Value(Unlocked([&] { return DumpReader::Open(path); }));
  for (const DumpGroup& group : reader->groups()) {
    Check(InGroup(path, group.group, GroupMeta::FromJson(group.meta).status()));
  }
  new (self) PyDumpReader{std::move(reader)};
}

std::vector<DumpedGroup> Groups(PyDumpReader& self) {
  std::vector<DumpedGroup> groups;
  for (const DumpGroup& group : self.reader->groups()) {
    groups.emplace_back(group.group, group.dim, group.slot_floats, group.rows, group.meta);
  }
  return groups;
}

// Returns the columns of the block of a group that begins with a row.
nb::tuple ReadPiece(PyDumpReader& self, size_t index, uint64_t begin) {
  const auto& groups = self.reader->groups();
  if (index >= groups.size() || begin >= groups[index].rows) {
    Raise(InvalidArgument("expected a row of a group of the dump, got row " +
                          std::to_string(begin) + " of group number " + std::to_string(index)));
  }
  std::vector<Key> keys;
  std::vector<float> embeddings, slots;
  std::vector<int64_t> nums, times;
  const size_t dim = groups[index].dim;
  Check(Unlocked([&] {
    return self.reader->ReadPiece(index, begin, [&](int, const TableContents& piece) {
      return OrNoMemory([&] {
        const size_t n = piece.n;
        const RowColumns& rows = piece.rows;
        keys.assign(rows.keys, rows.keys + n);
        embeddings.assign(rows.embeddings, rows.embeddings + n * dim);
        if (rows.slots != nullptr) slots.assign(rows.slots, rows.slots + n * piece.slot_floats);
        nums.assign(rows.update_nums, rows.update_nums + n);
        times.assign(rows.update_times, rows.update_times + n);
        return Status();
      });
    });
  }));
  return nb::make_tuple(ToNumpy(std::move(keys)), ToNumpy(std::move(embeddings)),
                        ToNumpy(std::move(slots)), ToNumpy(std::move(nums)),
                        ToNumpy(std::move(times)));
}

void OpenWriter(PyDumpWriter* self, nb::handle given) {
  const std::string path = ToPath(given);
  new (self) PyDumpWriter{Value(Unlocked([&] { return DumpWriter::Open(path); }))};
}

void PutRows(PyDumpWriter& self, const KeysIn& keys, const NumbersIn& nums, const NumbersIn& times,
             const FloatsIn& embeddings, const FloatsIn& slots, int dim, int slot_floats) {
  Check(self.writer->CheckWidths(dim, slot_floats));
  const TableContents piece = PieceOf(keys, nums, times, embeddings, slots, dim, slot_floats);
  Check(Unlocked([&] { return self.writer->AddRows(piece); }));
}

}  // namespace

void BindDump(nb::module_& module) {
  nb::class_<PyDumpReader>(module, "DumpReader")
      .def("__init__", OpenReader, nb::arg("path"))
      .def("groups", Groups)
      .def("verify",
           [](PyDumpReader& self) { Check(Unlocked([&] { return self.reader->Verify(); })); })
      .def("read", ReadPiece, nb::arg("index"), nb::arg("begin"));
  nb::class_<PyDumpWriter>(module, "DumpWriter")
      .def("__init__", OpenWriter, nb::arg("path"))
      .def(
          "begin_group",
          [](PyDumpWriter& self, int group, int dim, int slot_floats, const std::string& meta) {
            Check(self.writer->BeginGroup({group, dim, meta, slot_floats}));
          },
          nb::arg("group"), nb::arg("dim"), nb::arg("slot_floats"), nb::arg("meta"))
      .def("put_rows", PutRows, nb::arg("keys").noconvert(), nb::arg("update_nums").noconvert(),
           nb::arg("update_times").noconvert(), nb::arg("embeddings").noconvert(),
           nb::arg("slots").noconvert(), nb::arg("dim"), nb::arg("slot_floats"))
      .def("finish",
           [](PyDumpWriter& self) { Check(Unlocked([&] { return self.writer->Finish(); })); });
}

}  // namespace sok::binding
