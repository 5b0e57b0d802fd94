#include "core/disk/key_filter.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// The least size that has huge pages: smaller filters would become larger by them.
constexpr size_t kHugeFrom = size_t{16} << 20;
constexpr size_t kAhead = 16;  // keys between a prefetch and its use

// Odd numbers, one for each word of a line: the highest bits of a hash times such a number choose
// the bit.
constexpr uint64_t kOdd[] = {0x9e3779b97f4a7c15ull, 0xbf58476d1ce4e5b9ull, 0x94d049bb133111ebull,
                             0xd6e8feb86659fd93ull, 0xa0761d6478bd642full, 0xe7037ed1a0b428dbull,
                             0x8ebc6af09c88c6e3ull, 0x589965cc75374cc3ull};

uint64_t BitOf(uint64_t hash, int word) { return uint64_t{1} << ((hash * kOdd[word]) >> 58); }

// The file begins with this, and ends with the checksum of all before.
struct FileHead {
  char magic[8];
  uint64_t files;
  uint64_t filters;
};
constexpr char kMagic[8] = {'S', 'O', 'K', 'K', 'E', 'Y', 'S', '1'};

// Each filter begins with this.
struct FilterHead {
  uint64_t lines;
  uint64_t keys;
};

}  // namespace

KeyFilter::Filter::Filter(uint64_t lines_of_it)
    : lines(lines_of_it), pages(lines * 64, lines * 64 >= kHugeFrom) {}

bool KeyFilter::Filter::Contains(uint64_t hash) const {
  const uint64_t* line = LineOf(hash);
  for (int word = 0; word < kWords; ++word) {
    const uint64_t bit = BitOf(hash, word);
    if ((__atomic_load_n(line + word, __ATOMIC_RELAXED) & bit) == 0) return false;
  }
  return true;
}

uint64_t KeyFilter::Hash(const RowKey& key) {
  const std::string_view bytes = key.view();
  return Mix64(RowKey::KeyOf(bytes) ^ Mix64(static_cast<uint64_t>(RowKey::Group(bytes)) + 1));
}

KeyFilter::Filter* KeyFilter::Filling() {
  for (;;) {
    const uint32_t used = used_.load(std::memory_order_acquire);
    Filter* last = used == 0 ? nullptr : filters_[used - 1].get();
    if (last != nullptr && last->keys.load(std::memory_order_relaxed) < last->capacity()) {
      return last;
    }
    std::lock_guard<std::mutex> guard(mu_);
    if (used_.load(std::memory_order_relaxed) != used) continue;  // another thread has made one
    if (used == kMostFilters) return nullptr;
    std::unique_ptr<Filter> made(new (std::nothrow)
                                     Filter(last == nullptr ? kLeastLines : 2 * last->lines));
    if (made == nullptr || made->pages.data() == nullptr) return nullptr;
    filters_[used] = std::move(made);
    used_.store(used + 1, std::memory_order_release);
  }
}

void KeyFilter::Find(const std::vector<uint64_t>& hashes, uint32_t used,
                     std::vector<uint8_t>* found) const {
  const size_t n = hashes.size();
  for (uint32_t f = used; f-- > 0;) {
    const Filter& filter = *filters_[f];
    for (size_t i = 0; i < n + kAhead; ++i) {
      if (i < n) __builtin_prefetch(filter.LineOf(hashes[i]));
      if (i < kAhead) continue;
      uint8_t& at = (*found)[i - kAhead];
      at = at | static_cast<uint8_t>(filter.Contains(hashes[i - kAhead]));
    }
  }
}

void KeyFilter::Add(const RowKey* keys, size_t n) {
  if (PassesAll() || n == 0) return;
  std::vector<uint64_t> hashes(n);
  for (size_t i = 0; i < n; ++i) hashes[i] = Hash(keys[i]);
  std::vector<uint8_t> found(n);
  Find(hashes, used_.load(std::memory_order_acquire), &found);
  for (size_t i = 0; i < n; ++i) {
    if (found[i] != 0) continue;
    Filter* filter = Filling();
    if (filter == nullptr) {
      passes_all_.store(true, std::memory_order_relaxed);
      return;
    }
    uint64_t* line = filter->LineOf(hashes[i]);
    for (int word = 0; word < kWords; ++word) {
      __atomic_fetch_or(line + word, BitOf(hashes[i], word), __ATOMIC_RELAXED);
    }
    filter->keys.fetch_add(1, std::memory_order_relaxed);
  }
}

std::vector<uint32_t> KeyFilter::Select(const RowKey* keys, size_t n) const {
  std::vector<uint32_t> positions;
  std::vector<uint64_t> hashes(n);
  for (size_t i = 0; i < n; ++i) hashes[i] = Hash(keys[i]);
  std::vector<uint8_t> found(n);
  if (PassesAll()) {
    std::fill(found.begin(), found.end(), uint8_t{1});
  } else {
    Find(hashes, used_.load(std::memory_order_acquire), &found);
  }
  for (size_t i = 0; i < n; ++i) {
    if (found[i] != 0) positions.push_back(static_cast<uint32_t>(i));
  }
  return positions;
}

uint64_t KeyFilter::size() const {
  uint64_t keys = 0;
  const uint32_t used = used_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; ++i) keys += filters_[i]->keys.load(std::memory_order_relaxed);
  return keys;
}

uint64_t KeyFilter::bytes() const {
  uint64_t bytes = 0;
  const uint32_t used = used_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; ++i) bytes += filters_[i]->pages.bytes();
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
  const uint32_t used = used_.load(std::memory_order_acquire);
  FileHead head = {{}, seen.size(), used};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  SOK_RETURN_IF_ERROR(write(&head, sizeof(head)));
  SOK_RETURN_IF_ERROR(write(seen.data(), seen.size() * sizeof(SeenFile)));
  // Keys may be added meanwhile, so bits are copied before the checksum and the file see them.
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<char> piece(kPiece);
  for (uint32_t i = 0; i < used; ++i) {
    const Filter& filter = *filters_[i];
    const FilterHead of_filter = {filter.lines, filter.keys.load(std::memory_order_relaxed)};
    SOK_RETURN_IF_ERROR(write(&of_filter, sizeof(of_filter)));
    for (size_t at = 0; at < filter.lines * 64; at += kPiece) {
      const size_t bytes = std::min<size_t>(kPiece, filter.lines * 64 - at);
      std::memcpy(piece.data(), filter.pages.data() + at, bytes);
      SOK_RETURN_IF_ERROR(write(piece.data(), bytes));
    }
  }
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
  if (head.files > file.bytes() / sizeof(SeenFile) || head.filters > kMostFilters) return false;
  std::vector<SeenFile> files(head.files);
  if (!read(files.data(), files.size() * sizeof(SeenFile))) return false;
  std::vector<std::unique_ptr<Filter>> filters;
  for (uint64_t i = 0; i < head.filters; ++i) {
    FilterHead of_filter;
    // The sizes are those that Filling gives, so that what is made later is as large as it should.
    if (!read(&of_filter, sizeof(of_filter)) || of_filter.lines != kLeastLines << i) return false;
    if (of_filter.lines * 64 > file.bytes() - at) return false;
    filters.emplace_back(new Filter(of_filter.lines));
    Filter& filter = *filters.back();
    if (filter.pages.data() == nullptr || !read(filter.pages.data(), filter.lines * 64)) {
      return false;
    }
    filter.keys = of_filter.keys;
  }
  const uint64_t sum = checksum.value();
  uint64_t stored;
  if (!read(&stored, sizeof(stored)) || at != file.bytes() || stored != sum) return false;
  for (size_t i = 0; i < filters.size(); ++i) filters_[i] = std::move(filters[i]);
  used_ = static_cast<uint32_t>(filters.size());
  *seen = std::move(files);
  return true;
}

}  // namespace sok
