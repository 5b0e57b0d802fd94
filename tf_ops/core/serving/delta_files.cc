#include "core/serving/delta_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <utility>

#include "core/base/canonical_json.h"
#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/base/flat_json.h"
#include "core/base/folder.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/serving/scratch_folder.h"

namespace sok {
namespace {

constexpr char kFormat[] = "sok-embed delta";
constexpr uint64_t kVersion = 1;
constexpr uint64_t kMostNumber = uint64_t{1} << 53;
constexpr size_t kMostManifestBytes = size_t{16} << 20;
constexpr int64_t kMostValues = int64_t{1} << 19;
constexpr size_t kPieceBytes = size_t{1} << 20;  // a file's checksum is made of those of its pieces

Status Damaged(const std::string& path, const std::string& expected, const std::string& received) {
  return Status(Code::kDataLoss, "Expected " + expected + " in '" + path + "'. Received: " +
                                     received + ". The delta is damaged or incomplete.");
}

std::string Hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string ChecksumText(const std::string& bytes, uint64_t seed) {
  return Hexadecimal(Checksum(bytes.data(), bytes.size(), seed));
}

// A regular file of a delta that is read from its beginning to its end.
class DeltaFile {
 public:
  // A link is refused. Errors: kDataLoss, kNotFound, as SystemError returns.
  static Result<std::unique_ptr<DeltaFile>> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
      if (errno == ELOOP) return Damaged(path, "a file", "a link");
      if (errno == ENXIO) return Damaged(path, "a file", "a socket");
      if (errno != ENOENT) return SystemError(errno, "open", path);
      return Status(Code::kNotFound, "Expected a file '" + path +
                                         "'. Received: no such file. The delta is incomplete.");
    }
    std::unique_ptr<DeltaFile> file(new DeltaFile(fd, path));
    struct stat found;
    if (fstat(fd, &found) != 0) return SystemError(errno, "look at", path);
    if (!S_ISREG(found.st_mode)) return Damaged(path, "a file", "something else");
    file->bytes_ = static_cast<uint64_t>(found.st_size);
    return file;
  }
  ~DeltaFile() { close(fd_); }
  DeltaFile(const DeltaFile&) = delete;
  DeltaFile& operator=(const DeltaFile&) = delete;

  uint64_t bytes() const { return bytes_; }

  // Reads at most so many bytes, and less at the end of the file alone.
  Status Read(size_t most, std::string* bytes) {
    bytes->resize(most);
    size_t held = 0;
    while (held < most) {
      const ssize_t got = read(fd_, bytes->data() + held, most - held);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SystemError(errno, "read", path_);
      if (got == 0) break;
      held += static_cast<size_t>(got);
    }
    bytes->resize(held);
    return Status();
  }

 private:
  DeltaFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  const int fd_;
  const std::string path_;
  uint64_t bytes_ = 0;
};

// Reads the JSON of a file, whose text is written to `text`.
Result<FlatJson> ReadJson(const std::string& path, size_t most, std::string* text) {
  SOK_ASSIGN_OR_RETURN(const auto file, DeltaFile::Open(path));
  SOK_RETURN_IF_ERROR(file->Read(std::min<size_t>(most, file->bytes()) + 1, text));
  if (text->size() > most) {
    return Damaged(path, "at most " + std::to_string(most) + " bytes", "more");
  }
  const auto values = std::count_if(text->begin(), text->end(),
                                    [](char c) { return c == ',' || c == '[' || c == '{'; });
  std::optional<FlatJson> json;
  if (values <= kMostValues) json = FlatJson::Parse(*text);
  if (!json.has_value()) return Damaged(path, "JSON", "another text, or too many values");
  return std::move(*json);
}

// The record of a file in a manifest.
struct Record {
  uint64_t rows = 0;  // of files of rows alone
  uint64_t bytes = 0;
  std::string checksum;
};

// Calls take(piece) with the content of a file; returns an error unless it fits its record.
template <typename Take>
Status ReadRecorded(const std::string& path, const Record& record, const Take& take) {
  SOK_ASSIGN_OR_RETURN(const auto file, DeltaFile::Open(path));
  if (file->bytes() != record.bytes) {
    return Damaged(path, std::to_string(record.bytes) + " bytes", std::to_string(file->bytes()));
  }
  std::string piece, sums;
  uint64_t at = 0;
  while (at < record.bytes) {
    const uint64_t rest = record.bytes - at;
    SOK_RETURN_IF_ERROR(
        file->Read(static_cast<size_t>(std::min<uint64_t>(kPieceBytes, rest)), &piece));
    if (piece.empty()) break;  // cut meanwhile
    const uint64_t sum = Checksum(piece.data(), piece.size(), at);
    for (int shift = 0; shift < 64; shift += 8) sums += static_cast<char>(sum >> shift & 0xff);
    SOK_RETURN_IF_ERROR(take(piece));
    at += piece.size();
  }
  const std::string found = ChecksumText(sums, at);
  if (found == record.checksum) return Status();
  return Damaged(path, "the checksum " + record.checksum, found);
}

// The manifest of a delta.
struct Manifest {
  std::string base, previous, digest;
  uint64_t number = 0, step = 0;
  Record weights;
  std::vector<std::optional<Record>> rows, gone;  // of each table
};

// Reads values of a manifest.
class ManifestReader {
 public:
  ManifestReader(const std::string& path, const FlatJson& json) : path_(path), json_(json) {}

  template <typename T>
  Status Get(const std::string& at, const char* expected, T* value) const {
    return json_.Get(at, value) ? Status() : Misfit(at, expected);
  }
  Status Number(const std::string& at, uint64_t least, uint64_t most, uint64_t* number) const {
    if (json_.Get(at, number) && *number >= least && *number <= most) return Status();
    return Misfit(at,
                  "an integer in [" + std::to_string(least) + ", " + std::to_string(most) + "]");
  }
  Status FileRecord(const std::string& at, Record* record) const {
    SOK_RETURN_IF_ERROR(Number(at + "/bytes", 0, kMostBytes, &record->bytes));
    return Get(at + "/checksum", "a text", &record->checksum);
  }
  // Reads what may be null.
  Status RowsRecord(const std::string& at, std::optional<Record>* record) const {
    if (json_.has_null(at)) return Status();
    record->emplace();
    SOK_RETURN_IF_ERROR(FileRecord(at, &**record));
    return Number(at + "/rows", 1, kMostBytes, &(*record)->rows);
  }
  Status Misfit(const std::string& at, const std::string& expected) const {
    return Damaged(path_, expected + " as '" + at.substr(1) + "'",
                   json_.has(at) ? "another value" : "none");
  }

 private:
  static constexpr uint64_t kMostBytes = uint64_t{1} << 63;

  const std::string& path_;
  const FlatJson& json_;
};

Result<Manifest> ReadManifest(const std::string& path, const ExportedTables& base) {
  std::string text;
  SOK_ASSIGN_OR_RETURN(const FlatJson json, ReadJson(path, kMostManifestBytes, &text));
  const ManifestReader reader(path, json);
  std::string format;
  uint64_t version = 0;
  if (!json.Get("/format", &format) || format != kFormat) {
    return reader.Misfit("/format", std::string("'") + kFormat + "'");
  }
  if (!json.Get("/format_version", &version) || version != kVersion) {
    return InvalidArgument("Expected a delta of format " + std::to_string(kVersion) + " in '" +
                           path +
                           "'. Received: another format. Read it with the sok-embed that "
                           "wrote it, or a newer one.");
  }
  Manifest manifest;
  SOK_RETURN_IF_ERROR(reader.Get("/base", "a text", &manifest.base));
  SOK_RETURN_IF_ERROR(reader.Get("/previous", "a text", &manifest.previous));
  SOK_RETURN_IF_ERROR(reader.Get("/checksum", "a text", &manifest.digest));
  SOK_RETURN_IF_ERROR(reader.Number("/number", 0, kMostNumber, &manifest.number));
  SOK_RETURN_IF_ERROR(
      reader.Number("/step", 0, std::numeric_limits<int64_t>::max(), &manifest.step));
  SOK_RETURN_IF_ERROR(reader.FileRecord("/weights", &manifest.weights));
  const std::optional<std::string> rest = CanonicalJson(text, "checksum");
  if (!rest.has_value() || ChecksumText(*rest, 0) != manifest.digest) {
    return Damaged(path, "contents that agree with their checksum", "something else");
  }
  if (manifest.base != base.identity) return manifest;  // its tables are others
  for (size_t i = 0; i < base.files.size(); ++i) {
    const std::string at = "/tables/" + std::to_string(i);
    std::string file;
    if (!json.Get(at + "/file", &file) || file != base.files[i]) {
      return reader.Misfit(at + "/file", "'" + base.files[i] + "'");
    }
    SOK_RETURN_IF_ERROR(reader.RowsRecord(at + "/rows", &manifest.rows.emplace_back()));
    SOK_RETURN_IF_ERROR(reader.RowsRecord(at + "/gone", &manifest.gone.emplace_back()));
  }
  if (json.has("/tables/" + std::to_string(base.files.size()))) {
    return reader.Misfit("/tables", "a list of " + std::to_string(base.files.size()) + " values");
  }
  return manifest;
}

std::string FolderOf(const ExportedTables& base, uint64_t number) {
  char name[24];
  std::snprintf(name, sizeof(name), "%08llu", static_cast<unsigned long long>(number));
  return base.folder + "/deltas/" + name;
}

// Copies a file of rows, opens the copy, and checks all of it; null: there is none.
Result<std::shared_ptr<const ServedRows>> OpenCopy(const std::string& path,
                                                   const std::optional<Record>& record, int dim,
                                                   ScratchFolder* scratch) {
  if (!record.has_value()) return std::shared_ptr<const ServedRows>();
  const std::string copy = scratch->NewPath();
  SOK_ASSIGN_OR_RETURN(const auto to, ReplacementFile::Open(copy));
  SOK_RETURN_IF_ERROR(ReadRecorded(path, *record, [&](const std::string& piece) {
    return to->Write(piece.data(), piece.size());
  }));
  SOK_RETURN_IF_ERROR(to->Commit());
  auto rows = ServedRows::Open(copy);
  if (!rows.ok()) return rows.status().Within("A copy of '" + path + "': ");
  if (rows.value()->dim() != dim || rows.value()->size() != record->rows) {
    return Damaged(path, std::to_string(record->rows) + " rows of dim " + std::to_string(dim),
                   std::to_string(rows.value()->size()) + " rows of dim " +
                       std::to_string(rows.value()->dim()));
  }
  if (const Status status = rows.value()->Verify(SerialFor); !status.ok()) {
    return status.Within("A copy of '" + path + "': ");
  }
  return rows;
}

Status NoDelta(const ExportedTables& base, uint64_t number) {
  uint64_t newest = 0;
  SOK_ASSIGN_OR_RETURN(const auto names, FilesIn(base.folder + "/deltas"));
  for (const std::string& name : names) {
    if (name.find_first_not_of("0123456789") != std::string::npos || name.size() > 18) continue;
    newest = std::max<uint64_t>(newest, std::stoull(name));
  }
  return Status(Code::kNotFound,
                "Expected delta " + std::to_string(number) + " in '" + FolderOf(base, number) +
                    "'. Received: no such folder; " +
                    (newest > 0 ? "the newest delta there is " + std::to_string(newest) + "."
                                : "the export has no deltas."));
}

}  // namespace

Result<ExportedTables> OpenExport(const std::string& folder) {
  ExportedTables base;
  base.folder = folder;
  const std::string advice =
      " Pass the folder of a version that sok_embed.serving.export has written with "
      "ops=\"native\", such as 'served/1'.";
  auto file = InputFile::Open(folder + "/fingerprint.pb");
  if (!file.ok()) return file.status().Within("", advice);
  std::string fingerprint(static_cast<size_t>(std::min<uint64_t>(file.value()->bytes(), 1 << 20)),
                          '\0');
  SOK_RETURN_IF_ERROR(file.value()->ReadAt(0, fingerprint.data(), fingerprint.size()));
  for (const uint8_t byte : Sha256(fingerprint)) base.identity += Hexadecimal(byte).substr(14);
  SOK_ASSIGN_OR_RETURN(auto names, FilesIn(folder + "/assets"));
  std::sort(names.begin(), names.end());
  const std::string suffix = ".safetensors";
  for (std::string& name : names) {
    if (name.size() <= suffix.size() ||
        name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
      continue;
    }
    SOK_ASSIGN_OR_RETURN(base.tables.emplace_back(), ServedRows::Open(folder + "/assets/" + name));
    base.files.push_back(std::move(name));
  }
  if (base.files.empty()) {
    return InvalidArgument("Expected files of rows in '" + folder + "/assets'. Received: none." +
                           advice);
  }
  return base;
}

Result<uint64_t> NewestDelta(const ExportedTables& base) {
  const std::string path = base.folder + "/deltas/CURRENT.json";
  std::string text;
  const auto json = ReadJson(path, 4096, &text);
  if (json.status().code() == Code::kNotFound) return uint64_t{0};
  if (!json.ok()) return json.status();
  uint64_t number = 0;
  SOK_RETURN_IF_ERROR(ManifestReader(path, json.value()).Number("/delta", 0, kMostNumber, &number));
  return number;
}

Result<RowsDelta> ReadDelta(const ExportedTables& base, uint64_t number,
                            const std::string& previous) {
  const std::string folder = FolderOf(base, number);
  struct stat found;
  if (lstat(folder.c_str(), &found) != 0) {
    return errno == ENOENT ? NoDelta(base, number) : SystemError(errno, "look at", folder);
  }
  SOK_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder + "/delta.json", base));
  if (manifest.base != base.identity || manifest.number != number) {
    return InvalidArgument("Expected delta " + std::to_string(number) + " of '" + base.folder +
                           "' in '" + folder + "'. Received: delta " +
                           std::to_string(manifest.number) + " of " +
                           (manifest.base == base.identity ? "it" : "another") +
                           ". Publish to this export, or copy the folder again.");
  }
  if (manifest.previous != previous) {
    return InvalidArgument("Expected a delta in '" + folder +
                           "' that follows the one before it. Received: a delta that follows "
                           "another delta. Copy all deltas of the export again.");
  }
  SOK_ASSIGN_OR_RETURN(const auto scratch, ScratchFolder::Make());
  RowsDelta delta;
  delta.number = number;
  delta.digest = manifest.digest;
  delta.step = manifest.step;
  for (size_t i = 0; i < base.tables.size(); ++i) {
    const std::string end = "-" + std::to_string(i) + ".safetensors";
    RowsLayer& layer = delta.changes.emplace_back();
    SOK_ASSIGN_OR_RETURN(layer.rows, OpenCopy(folder + "/rows" + end, manifest.rows[i],
                                              base.tables[i]->dim(), scratch.get()));
    SOK_ASSIGN_OR_RETURN(layer.gone,
                         OpenCopy(folder + "/gone" + end, manifest.gone[i], 1, scratch.get()));
  }
  SOK_RETURN_IF_ERROR(ReadRecorded(folder + "/weights.safetensors", manifest.weights,
                                   [](const std::string&) { return Status(); }));
  return delta;
}

}  // namespace sok
