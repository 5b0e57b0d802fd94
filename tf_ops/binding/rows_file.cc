// Files of rows of a checkpoint, and the captures of tables that go into them.
#include "core/dump/rows_file.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding/binding.h"
#include "binding/row_calls.h"
#include "core/rows/key_set.h"

namespace sok::binding {
namespace {

using BytesIn = Array<const uint8_t>;

// A capture that was handed over; Python may end it before the garbage collector does.
class PyCapture {
 public:
  explicit PyCapture(uint64_t number) {
    auto taken = TakeCapture(number);
    if (!taken) {
      Raise(InvalidArgument("expected the number of a capture that nobody has taken, got " +
                            std::to_string(number)));
    }
    capture_ = std::move(taken);
  }
  ~PyCapture() { End(); }

  TableCapture& get() {
    if (!capture_) {
      Raise(Status(Code::kFailedPrecondition,
                   "expected a capture that goes on, got one that has "
                   "ended; begin another one"));
    }
    return *capture_;
  }
  void End() {
    if (!capture_) return;
    const GilReleased released;
    capture_.reset();
  }

 private:
  std::optional<TableCapture> capture_;
};

// Copies rows that were not copied before. Returns their number; if it is smaller than the size of
// `keys`, these were the last rows.
size_t NextOf(PyCapture& self, const Array<Key>& keys, const Array<uint32_t>& nums,
              const FloatsOut& embeddings) {
  TableCapture& capture = self.get();
  const size_t room = keys.size();
  CheckSize("update_nums", nums.size(), room, "one a key");
  CheckSize("embeddings", embeddings.size(), room * static_cast<size_t>(capture.dim), "dim a key");
  std::vector<uint32_t> times(room);
  std::vector<float> slots(room * static_cast<size_t>(capture.slot_floats()));
  return Value(Unlocked([&] {
    return capture.rows->Next(
        {keys.data(), nums.data(), times.data(), embeddings.data(), slots.data()}, room);
  }));
}

nb::bytes RemovedOf(PyCapture& self) {
  const std::vector<Key>& keys = self.get().rows->removed();
  return nb::bytes(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(Key));
}

struct PyRowsFileWriter {
  std::unique_ptr<RowsFileWriter> writer;

  RowsFileWriter& get() {
    if (writer == nullptr) {
      Raise(Status(Code::kFailedPrecondition,
                   "expected a file that is open, got one that is closed"));
    }
    return *writer;
  }
};

void PutRows(PyRowsFileWriter& self, uint32_t table, const KeysIn& keys, const NumbersIn& nums,
             const NumbersIn& times, const FloatsIn& embeddings, const FloatsIn& slots, int dim,
             int slot_floats) {
  const TableContents piece = PieceOf(keys, nums, times, embeddings, slots, dim, slot_floats);
  RowsFileWriter& writer = self.get();
  Check(Unlocked([&] {
    RowsBlocks blocks(&writer, table, dim, slot_floats);
    Status status = blocks.Add(piece);
    return status.ok() ? blocks.End() : status;
  }));
}

void PutAllCaptures(PyRowsFileWriter& self, const std::vector<uint32_t>& tables,
                    const std::vector<PyCapture*>& captures) {
  std::vector<NumberedCapture> numbered;
  for (size_t i = 0; i < captures.size(); ++i) {
    numbered.push_back({tables.at(i), &captures[i]->get()});
  }
  RowsFileWriter& writer = self.get();
  Check(Unlocked([&] { return PutCaptures(numbered, &writer); }));
}

}  // namespace

void BindRowsFile(nb::module_& module) {
  nb::class_<PyCapture>(module, "Capture")
      .def(nb::init<uint64_t>(), nb::arg("number"))
      .def_prop_ro("rows", [](PyCapture& self) { return self.get().rows->rows(); })
      .def_prop_ro("size", [](PyCapture& self) { return self.get().rows->size(); })
      .def_prop_ro("removed", [](PyCapture& self) { return self.get().rows->removed().size(); })
      .def("removed_keys", RemovedOf)
      .def("next", NextOf, nb::arg("keys").noconvert(), nb::arg("update_nums").noconvert(),
           nb::arg("embeddings").noconvert())
      .def("release",
           [](PyCapture& self) {
             TableCapture& capture = self.get();
             const GilReleased released;
             capture.rows->Release();
           })
      .def("keep", [](PyCapture& self) { self.get().rows->Keep(); })
      .def("end", &PyCapture::End);

  nb::class_<PyRowsFileWriter>(module, "RowsFileWriter")
      .def(
          "__init__",
          [](PyRowsFileWriter* self, nb::handle path, uint64_t attempt, uint32_t worker,
             uint32_t workers) {
            const std::string name = ToPath(path);
            new (self) PyRowsFileWriter{Value(Unlocked([&] {
              return RowsFileWriter::Create(name, {attempt, worker, workers});
            }))};
          },
          nb::arg("path"), nb::arg("attempt"), nb::arg("worker"), nb::arg("workers"))
      .def("put_rows", PutRows, nb::arg("table"), nb::arg("keys").noconvert(),
           nb::arg("update_nums").noconvert(), nb::arg("update_times").noconvert(),
           nb::arg("embeddings").noconvert(), nb::arg("slots").noconvert(), nb::arg("dim"),
           nb::arg("slot_floats"))
      .def(
          "put_stored",
          [](PyRowsFileWriter& self, uint32_t table, PyStorage& storage, int group) {
            RowsFileWriter& writer = self.get();
            Progress progress{nb::none()};  // which sees an interrupt
            auto rows = Unlocked([&] {
              return storage.storage->CopyRows(group, table, &writer, progress.report());
            });
            progress.Rethrow();
            return Value(std::move(rows));
          },
          nb::arg("table"), nb::arg("storage"), nb::arg("group"))
      .def("put_captures", PutAllCaptures, nb::arg("tables"), nb::arg("captures"))
      .def(
          "put_bytes",
          [](PyRowsFileWriter& self, uint32_t table, uint32_t kind, const BytesIn& bytes) {
            RowsFileWriter& writer = self.get();
            Check(Unlocked([&] {
              return writer.PutBytes(table, static_cast<RowsBlock>(kind), bytes.data(),
                                     bytes.size());
            }));
          },
          nb::arg("table"), nb::arg("kind"), nb::arg("bytes").noconvert())
      .def(
          "put_removed",
          [](PyRowsFileWriter& self, uint32_t table, const KeysIn& keys) {
            RowsFileWriter& writer = self.get();
            Check(Unlocked([&] { return writer.PutRemoved(table, keys.data(), keys.size()); }));
          },
          nb::arg("table"), nb::arg("keys").noconvert())
      .def(
          "finish",
          [](PyRowsFileWriter& self, const nb::bytes& index) {
            const std::string text(index.c_str(), index.size());
            RowsFileWriter& writer = self.get();
            const auto summary = Value(Unlocked([&] { return writer.Finish(text); }));
            return std::make_pair(summary.bytes, summary.checksum);
          },
          nb::arg("index"))
      .def("close", [](PyRowsFileWriter& self) { self.writer.reset(); });

  nb::class_<KeySet>(module, "KeySet")
      .def(nb::init<>())
      .def("__len__", &KeySet::size)
      .def(
          "add",
          [](KeySet& self, const KeysIn& keys) {
            const GilReleased released;
            for (size_t i = 0; i < keys.size(); ++i) self.Insert(keys.data()[i]);
          },
          nb::arg("keys").noconvert())
      .def(
          "contains",
          [](const KeySet& self, const KeysIn& keys, const FlagsOut& out) {
            CheckSize("out", out.size(), keys.size(), "one a key");
            const GilReleased released;
            for (size_t i = 0; i < keys.size(); ++i) out.data()[i] = self.Contains(keys.data()[i]);
          },
          nb::arg("keys").noconvert(), nb::arg("out").noconvert());

  module.def(
      "set_capture_budget", [](uint64_t bytes) { CaptureBudget::OfProcess().set_limit(bytes); },
      nb::arg("bytes"));
  module.def("capture_figures", [] {
    const CaptureBudget& budget = CaptureBudget::OfProcess();
    nb::dict figures;
    figures["limit"] = budget.limit();
    figures["used"] = budget.used();
    figures["peak"] = budget.peak();
    figures["waited_seconds"] = budget.waited_seconds();
    return figures;
  });
}

}  // namespace sok::binding
