// The files of an exported model that have rows, and those of its deltas: new, changed and removed
// rows in numbered folders. docs/reference/serving-live.md describes them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/serving/layered_rows.h"
#include "core/serving/served_rows.h"

namespace sok {

// The tables of an exported model.
struct ExportedTables {
  std::string folder;              // the numbered folder of the export
  std::string identity;            // SHA-256 of its fingerprint.pb, in hexadecimal digits
  std::vector<std::string> files;  // names of the files of rows, in order
  std::vector<std::shared_ptr<const ServedRows>> tables;  // the files, which are open
};

// Opens the files of rows of an export. Errors: as ServedRows::Open returns; kNotFound for another
// folder; kInvalidArgument for an export without files of rows.
Result<ExportedTables> OpenExport(const std::string& folder);

// The changes of one delta.
struct RowsDelta {
  uint64_t number = 0;
  std::string digest;              // the checksum of its manifest, which its successor names
  uint64_t step = 0;               // the step of the training
  std::vector<RowsLayer> changes;  // those of each table, in the order of ExportedTables
};

// Reads a delta and checks all of it: its manifest with its checksum, the export and the delta
// before that it names, and the checksums of all files. Dense weights are checked, and not parsed.
// The files of rows are copies without names, so that later changes of the delta have no effect.
// `previous` is the digest of the delta before; "" for the first. Errors: kNotFound if there is
// none; kDataLoss if it is damaged; kInvalidArgument for a later format, for a delta of another
// export, and for one that follows another delta; as SystemError returns.
Result<RowsDelta> ReadDelta(const ExportedTables& base, uint64_t number,
                            const std::string& previous);

// Returns the number of the newest delta from CURRENT.json; 0: there is none. Errors: kDataLoss; as
// SystemError returns.
Result<uint64_t> NewestDelta(const ExportedTables& base);

}  // namespace sok
