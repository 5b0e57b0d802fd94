#include "core/disk/key_filter.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/base/thread_pool.h"

namespace sok {
namespace {

// The smallest part that is laid out in huge pages: they would make a smaller one larger.
constexpr size_t kHugeFrom = size_t{16} << 20;
constexpr size_t kAhead = 16;  // keys between a prefetch and its use

// Returns 8 numbers of 6 bits: the bit of each word that stands for a key. The highest bits of the
// hash choose a line; these come from the other bits.
uint64_t PlacesOf(uint64_t hash) { return (hash * 0x9e3779b97f4a7c15ull) >> 16; }
uint64_t PlaceIn(int word, uint64_t places) { return (places >> (6 * word)) & 63; }

// The file begins with this. A SeenFile for each file and a PartHead for each part follow, then the
// parts in pieces of up to kPiece bytes, the checksum of each piece, and the checksum of everything
// but the pieces.
struct FileHead {
  char magic[8];
  uint64_t files;
  uint64_t parts;
};
constexpr char kMagic[8] = {'S', 'O', 'K', 'K', 'E', 'Y', 'S', '2'};
constexpr uint64_t kPiece = uint64_t{4} << 20;
constexpr int64_t kPieceCost = 2000000;  // nanoseconds, for ParallelFor

struct PartHead {
  uint64_t lines;
  uint64_t keys;
};

}  // namespace

KeyFilter::KeyFilter(uint64_t part_bytes)
    : large_lines_(std::max(part_bytes, kLeastBytes) / kLineBytes) {}

KeyFilter::Part::Part(uint64_t lines_of_it, bool is_small)
    : lines(lines_of_it),
      capacity(lines * (is_small ? kKeysASmallLine : kKeysALine)),
      pages(lines * kLineBytes, lines * kLineBytes >= kHugeFrom) {}

bool KeyFilter::Part::Contains(uint64_t hash) const {
  const uint64_t* line = LineOf(hash);
  const uint64_t places = PlacesOf(hash);
  // All words are read: with a branch at each, one would be mispredicted for each key.
  uint64_t all = 1;
  for (int word = 0; word < kWords; ++word) {
    all &= __atomic_load_n(line + word, __ATOMIC_RELAXED) >> PlaceIn(word, places);
  }
  return all != 0;
}

void KeyFilter::Part::Set(uint64_t hash) {
  uint64_t* line = LineOf(hash);
  const uint64_t places = PlacesOf(hash);
  for (int word = 0; word < kWords; ++word) {
    const uint64_t bits = __atomic_load_n(line + word, __ATOMIC_RELAXED);
    __atomic_store_n(line + word, bits | uint64_t{1} << PlaceIn(word, places), __ATOMIC_RELAXED);
  }
  keys.store(keys.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

uint64_t KeyFilter::Hash(const RowKey& key) {
  const std::string_view bytes = key.view();
  return Mix64(RowKey::KeyOf(bytes) ^ Mix64(static_cast<uint64_t>(RowKey::Group(bytes)) + 1));
}

std::vector<uint64_t> KeyFilter::HashesOf(const RowKey* keys, size_t n) {
  std::vector<uint64_t> hashes(n);
  for (size_t i = 0; i < n; ++i) hashes[i] = Hash(keys[i]);
  return hashes;
}

uint64_t KeyFilter::LinesOf(uint32_t used) const {
  uint64_t lines = 0;
  for (uint32_t i = 0; i < used; ++i) lines += parts_[i]->lines;
  if (lines == 0) return kLeastBytes / kLineBytes;
  return std::max(std::min(16 * lines, large_lines_), lines / 2);
}

KeyFilter::Part* KeyFilter::Filling() {
  const uint32_t used = parts();
  Part* const last = used == 0 ? nullptr : parts_[used - 1].get();
  if (last != nullptr && !last->full()) return last;
  if (used == kMostParts) return nullptr;
  const uint64_t lines = LinesOf(used);
  std::unique_ptr<Part> made(new (std::nothrow) Part(lines, lines < large_lines_));
  if (made == nullptr || made->pages.data() == nullptr) return nullptr;
  parts_[used] = std::move(made);
  used_.store(used + 1, std::memory_order_release);
  return parts_[used].get();
}

void KeyFilter::Find(const std::vector<uint64_t>& hashes, uint32_t used,
                     std::vector<uint8_t>* found) const {
  const size_t n = hashes.size();
  for (uint32_t p = used; p-- > 0;) {
    const Part& part = *parts_[p];
    for (size_t i = 0; i < n + kAhead; ++i) {
      if (i < n) __builtin_prefetch(part.LineOf(hashes[i]));
      if (i < kAhead) continue;
      uint8_t& at = (*found)[i - kAhead];
      at = at | static_cast<uint8_t>(part.Contains(hashes[i - kAhead]));
    }
  }
}

void KeyFilter::Add(const RowKey* keys, size_t n, bool are_new) {
  if (PassesAll() || n == 0) return;
  const std::vector<uint64_t> hashes = HashesOf(keys, n);
  std::vector<uint8_t> found(n);
  const std::lock_guard<std::mutex> adding(adding_);
  if (!are_new) Find(hashes, parts(), &found);
  for (size_t i = 0; i < n; ++i) {
    if (found[i] != 0) continue;
    Part* const part = Filling();
    if (part == nullptr) {
      passes_all_.store(true, std::memory_order_relaxed);
      return;
    }
    if (i + kAhead < n) __builtin_prefetch(part->LineOf(hashes[i + kAhead]), /*rw=*/1);
    part->Set(hashes[i]);
  }
}

std::vector<uint32_t> KeyFilter::Select(const RowKey* keys, size_t n) const {
  std::vector<uint32_t> positions;
  std::vector<uint8_t> found(n);
  if (PassesAll()) {
    std::fill(found.begin(), found.end(), uint8_t{1});
  } else {
    Find(HashesOf(keys, n), parts(), &found);
  }
  for (size_t i = 0; i < n; ++i) {
    if (found[i] != 0) positions.push_back(static_cast<uint32_t>(i));
  }
  return positions;
}

uint64_t KeyFilter::size() const {
  uint64_t keys = 0;
  const uint32_t used = parts();
  for (uint32_t i = 0; i < used; ++i) keys += parts_[i]->keys.load(std::memory_order_relaxed);
  return keys;
}

uint64_t KeyFilter::bytes() const {
  uint64_t bytes = 0;
  const uint32_t used = parts();
  for (uint32_t i = 0; i < used; ++i) bytes += parts_[i]->pages.bytes();
  return bytes;
}

Status KeyFilter::Save(const std::string& path, const std::vector<SeenFile>& seen) const {
  if (PassesAll()) {
    return Status(Code::kFailedPrecondition, "no filter for '" + path + "': there was no memory");
  }
  SOK_ASSIGN_OR_RETURN(auto file, ReplacementFile::Open(path));
  RunningChecksum checksum;
  checksum.Start(0);
  const auto write = [&](const void* bytes, size_t size) {
    checksum.Add(bytes, size);
    return file->Write(bytes, size);
  };
  const uint32_t used = parts();
  FileHead head = {{}, seen.size(), used};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  SOK_RETURN_IF_ERROR(write(&head, sizeof(head)));
  SOK_RETURN_IF_ERROR(write(seen.data(), seen.size() * sizeof(SeenFile)));
  for (uint32_t i = 0; i < used; ++i) {
    const PartHead of_part = {parts_[i]->lines, parts_[i]->keys.load(std::memory_order_relaxed)};
    SOK_RETURN_IF_ERROR(write(&of_part, sizeof(of_part)));
  }
  // Keys may be added meanwhile, so bits are copied before the checksum and the file see them.
  std::vector<char> piece(kPiece);
  std::vector<uint64_t> sums;
  for (uint32_t i = 0; i < used; ++i) {
    const Part& part = *parts_[i];
    for (uint64_t at = 0; at < part.bytes(); at += kPiece) {
      const uint64_t bytes = std::min(kPiece, part.bytes() - at);
      std::memcpy(piece.data(), part.pages.data() + at, bytes);
      sums.push_back(Checksum(piece.data(), bytes, file->bytes()));
      SOK_RETURN_IF_ERROR(file->Write(piece.data(), bytes));
    }
  }
  SOK_RETURN_IF_ERROR(write(sums.data(), sums.size() * sizeof(uint64_t)));
  const uint64_t sum = checksum.value();
  SOK_RETURN_IF_ERROR(file->Write(&sum, sizeof(sum)));
  return file->Commit();
}

bool KeyFilter::Load(const std::string& path, std::vector<SeenFile>* seen) {
  auto opened = InputFile::Open(path);
  if (!opened.ok()) return false;
  const InputFile& file = *opened.value();
  RunningChecksum checksum;
  checksum.Start(0);
  uint64_t at = 0;
  const auto read = [&](void* out, uint64_t size) {
    if (size > file.bytes() - at || !file.ReadAt(at, out, size).ok()) return false;
    checksum.Add(out, size);
    at += size;
    return true;
  };
  FileHead head;
  if (!read(&head, sizeof(head)) || std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0) {
    return false;
  }
  if (head.files > file.bytes() / sizeof(SeenFile) || head.parts > kMostParts) return false;
  std::vector<SeenFile> files(head.files);
  if (!read(files.data(), files.size() * sizeof(SeenFile))) return false;
  std::vector<PartHead> heads(head.parts);
  if (!read(heads.data(), heads.size() * sizeof(PartHead))) return false;
  struct Piece {
    size_t part;
    uint64_t at, bytes;  // in the part
    uint64_t offset;     // in the file
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < heads.size(); ++i) {
    if (heads[i].lines == 0 || heads[i].lines > (file.bytes() - at) / kLineBytes) return false;
    const uint64_t bytes = heads[i].lines * kLineBytes;
    for (uint64_t begin = 0; begin < bytes; begin += kPiece) {
      pieces.push_back({i, begin, std::min(kPiece, bytes - begin), at + begin});
    }
    at += bytes;
  }
  std::vector<uint64_t> sums(pieces.size());
  if (!read(sums.data(), sums.size() * sizeof(uint64_t))) return false;
  const uint64_t sum = checksum.value();
  uint64_t stored;
  if (!read(&stored, sizeof(stored)) || at != file.bytes() || stored != sum) return false;
  std::vector<std::unique_ptr<Part>> parts;
  for (const PartHead& of_part : heads) {
    parts.emplace_back(new Part(of_part.lines, of_part.lines < large_lines_));
    if (parts.back()->pages.data() == nullptr) return false;
    parts.back()->keys = of_part.keys;
  }
  std::atomic<bool> whole{true};
  ProcessPool()(static_cast<int64_t>(pieces.size()), kPieceCost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && whole; ++i) {
      const Piece& piece = pieces[i];
      char* const to = parts[piece.part]->pages.data() + piece.at;
      if (!file.ReadAt(piece.offset, to, piece.bytes).ok() ||
          Checksum(to, piece.bytes, piece.offset) != sums[i]) {
        whole = false;
      }
    }
  });
  if (!whole) return false;
  for (size_t i = 0; i < parts.size(); ++i) parts_[i] = std::move(parts[i]);
  used_ = static_cast<uint32_t>(parts.size());
  *seen = std::move(files);
  return true;
}

}  // namespace sok
