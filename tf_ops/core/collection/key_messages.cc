#include "core/collection/key_messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/collection/message_parts.h"

namespace sok {
namespace {

// The header of a segment of keys has two words: the number of bytes of the error's text, 0 if
// nothing failed; and the fingerprint of the sender's configuration.
constexpr size_t kKeyHeader = 2;

// Stands in front of the bags of a feature.
struct BagsHeader {
  int64_t bags;
  int64_t combiner;
  int64_t length;  // of each bag; -1: their lengths follow, as uint32, filled up to whole words
};
constexpr size_t kBagsHeader = sizeof(BagsHeader) / sizeof(int64_t);

size_t LengthWords(const FeatureBags& bags) {
  return bags.splits == nullptr ? 0 : WordsOf<int64_t>(bags.bags * sizeof(uint32_t));
}

int64_t* PutBags(const FeatureBags& bags, Combiner combiner, int64_t* to) {
  const BagsHeader header{static_cast<int64_t>(bags.bags), static_cast<int64_t>(combiner),
                          bags.splits != nullptr ? -1 : static_cast<int64_t>(bags.length)};
  std::memcpy(to, &header, sizeof(header));
  to += kBagsHeader;
  if (bags.splits != nullptr) {
    std::fill_n(to, LengthWords(bags), 0);
    for (size_t bag = 0; bag < bags.bags; ++bag) {
      const auto length = static_cast<uint32_t>(bags.end(bag) - bags.begin(bag));
      std::memcpy(reinterpret_cast<char*>(to) + bag * sizeof(length), &length, sizeof(length));
    }
    to += LengthWords(bags);
  }
  if (bags.n > 0) std::memcpy(to, bags.keys, bags.n * sizeof(Key));
  return to + bags.n;
}

// The part of a message to one worker that concerns one table.
class Section {
 public:
  Section(const CollectionRequest& request, size_t table, size_t worker)
      : plan_(request.plan()), part_(request.tables()[table]) {
    const TablePlacement& placement = plan_.tables[table].placement;
    if (placement.kind == TablePlacement::kOnAll) {
      n_ = plan_.trains || worker == plan_.rank ? part_.rows : 0;
    } else if (!placement.pools) {
      for (size_t before = 0; before < worker; ++before) first_ += part_.splits[before];
      n_ = part_.splits[worker];
    } else if (placement.worker == worker) {
      bags_ = &part_.bags;
    }
  }

  size_t words() const {
    if (bags_ == nullptr) return n_ * (1 + !part_.counts.empty() + !part_.said.empty());
    size_t words = 0;
    for (const FeatureBags& bags : *bags_) words += kBagsHeader + LengthWords(bags) + bags.n;
    return words;
  }

  size_t keys() const {
    size_t keys = n_;
    if (bags_ == nullptr) return keys;
    for (const FeatureBags& bags : *bags_) keys += bags.n;
    return keys;
  }

  void VisitKeys(const ::sok::VisitKeys& visit) const {
    if (n_ > 0) visit(part_.keys.data() + first_, n_);
    if (bags_ == nullptr) return;
    for (const FeatureBags& bags : *bags_) {
      if (bags.n > 0) visit(bags.keys, bags.n);
    }
  }

  int64_t* Put(int64_t* to) const {
    if (bags_ != nullptr) {
      for (size_t i = 0; i < bags_->size(); ++i) {
        to = PutBags((*bags_)[i], plan_.combiners[part_.features[i]], to);
      }
      return to;
    }
    if (n_ > 0) std::memcpy(to, part_.keys.data() + first_, n_ * sizeof(Key));
    to += n_;
    for (const std::vector<int64_t>* column : {&part_.counts, &part_.said}) {
      if (!column->empty()) to = std::copy_n(column->data() + first_, n_, to);
    }
    return to;
  }

 private:
  const CollectionPlan& plan_;
  const CollectionRequest::TablePart& part_;
  size_t first_ = 0, n_ = 0;                        // of the distinct keys
  const std::vector<FeatureBags>* bags_ = nullptr;  // or bags
};

// This worker reads its own rows ahead by itself.
bool HearsOf(const KeysToCome& to_come, uint32_t worker) {
  return !to_come.requests.empty() && worker != to_come.requests[0]->plan().rank;
}

// Returns whether the last words of a segment are keys to come.
bool AreKeysToCome(const int64_t* words, uint64_t n, size_t tables) {
  if (n < tables) return false;
  uint64_t left = n - tables;
  for (size_t table = 0; table < tables; ++table) {
    const auto count = static_cast<uint64_t>(words[table]);
    if (count > left) return false;
    left -= count;
  }
  return left == 0;
}

// Reads the bags of a section. Returns false if the words are not a section of bags.
bool ReadBags(const int64_t* words, size_t left, const std::shared_ptr<const void>& hold,
              std::vector<AskedBags>* out, size_t* rows) {
  while (left > 0) {
    BagsHeader header;
    if (left < kBagsHeader) return false;
    std::memcpy(&header, words, sizeof(header));
    words += kBagsHeader;
    left -= kBagsHeader;
    const bool even = header.length != -1;
    if (header.bags < 0 || header.bags > INT32_MAX || header.length < -1 || header.combiner < 0 ||
        header.combiner > static_cast<int64_t>(Combiner::kMax)) {
      return false;
    }
    FeatureBags bags{hold, nullptr, 0, static_cast<size_t>(header.bags), nullptr, 1};
    if (even) {
      if (header.bags > 0 && static_cast<size_t>(header.length) > left / bags.bags) return false;
      bags.length = static_cast<size_t>(header.length);
      bags.n = bags.bags * bags.length;
    } else {
      const size_t length_words = WordsOf<int64_t>(bags.bags * sizeof(uint32_t));
      if (length_words > left) return false;
      auto splits = std::make_shared<std::vector<int64_t>>(bags.bags + 1, 0);
      for (size_t bag = 0; bag < bags.bags; ++bag) {
        uint32_t length;
        std::memcpy(&length, reinterpret_cast<const char*>(words) + bag * sizeof(length),
                    sizeof(length));
        (*splits)[bag + 1] = (*splits)[bag] + length;
      }
      words += length_words;
      left -= length_words;
      bags.n = static_cast<size_t>(splits->back());
      bags.splits = splits->data();
      bags.hold =
          std::make_shared<std::pair<std::shared_ptr<const void>, decltype(splits)>>(hold, splits);
    }
    if (bags.n > left) return false;
    bags.keys = reinterpret_cast<const Key*>(words);
    words += bags.n;
    left -= bags.n;
    *rows += bags.bags;
    out->push_back({std::move(bags), static_cast<Combiner>(header.combiner)});
  }
  return *rows <= INT32_MAX;
}

}  // namespace

void ForKeysOf(const CollectionRequest& request, size_t table, uint32_t worker,
               const VisitKeys& visit) {
  Section(request, table, worker).VisitKeys(visit);
}

Result<std::vector<int32_t>> KeySplits(const CollectionRequest& request,
                                       const KeysToCome& to_come) {
  const CollectionPlan& plan = request.plan();
  const size_t tables = plan.tables.size();
  std::vector<size_t> sizes(plan.workers, kKeyHeader + tables);
  for (uint32_t worker = 0; worker < plan.workers; ++worker) {
    for (size_t table = 0; table < tables; ++table) {
      sizes[worker] += Section(request, table, worker).words();
    }
    if (!HearsOf(to_come, worker)) continue;
    sizes[worker] += tables;
    for (size_t table = 0; table < tables; ++table) {
      if (!to_come.tables[table]) continue;
      for (const auto& each : to_come.requests) {
        sizes[worker] += Section(*each, table, worker).keys();
      }
    }
  }
  return AsSplits(sizes, "keys");
}

void PutKeys(const CollectionRequest& request, int64_t* message, const KeysToCome& to_come) {
  const CollectionPlan& plan = request.plan();
  const size_t tables = plan.tables.size();
  for (uint32_t worker = 0; worker < plan.workers; ++worker) {
    int64_t* const header = message;
    header[0] = 0;
    header[1] = plan.fingerprint;
    message += kKeyHeader + tables;
    for (size_t table = 0; table < tables; ++table) {
      const Section section(request, table, worker);
      header[kKeyHeader + table] = static_cast<int64_t>(section.words());
      message = section.Put(message);
    }
    if (!HearsOf(to_come, worker)) continue;
    int64_t* const counts = std::exchange(message, message + tables);
    for (size_t table = 0; table < tables; ++table) {
      counts[table] = 0;
      if (!to_come.tables[table]) continue;
      for (const auto& each : to_come.requests) {
        Section(*each, table, worker).VisitKeys([&](const Key* keys, size_t n) {
          std::memcpy(message, keys, n * sizeof(Key));
          message += n;
          counts[table] += static_cast<int64_t>(n);
        });
      }
    }
  }
}

KeyMessage WriteFailure(const CollectionPlan& plan, const Status& failure) {
  const std::string_view text = failure.text().substr(0, kMostText);
  KeyMessage message;
  for (uint32_t worker = 0; worker < plan.workers; ++worker) {
    const size_t begin = message.words.size();
    const size_t words = kKeyHeader + WordsOf<int64_t>(text.size());
    message.words.resize(begin + words, 0);
    message.words[begin] = static_cast<int64_t>(text.size());
    message.words[begin + 1] = plan.fingerprint;
    PutText(text, message.words.data() + begin + kKeyHeader);
    message.splits.push_back(static_cast<int32_t>(words));
  }
  return message;
}

Result<AskedKeys> FindKeys(const ServedTables& served, const int64_t* message, size_t words,
                           const int32_t* splits, size_t workers,
                           std::shared_ptr<const void> hold) {
  const size_t tables = served.dims.size();
  const auto damaged = [&](size_t worker) {
    return InvalidArgument("expected keys as this release writes them, got a message of " +
                           std::to_string(splits[worker]) + " words with another layout from " +
                           NameOf(worker) + "; install one release of sok-embed on all workers");
  };
  std::vector<const int64_t*> segments;
  const int64_t* segment = message;
  for (size_t worker = 0; worker < workers; ++worker) {
    const auto size = static_cast<size_t>(std::max(splits[worker], 0));
    if (size < kKeyHeader || segment + size > message + words) return damaged(worker);
    segments.push_back(segment);
    segment += size;
  }
  for (size_t worker = 0; worker < workers; ++worker) {
    const auto bytes = static_cast<uint64_t>(segments[worker][0]);
    if (bytes == 0) continue;
    const size_t room = (static_cast<size_t>(splits[worker]) - kKeyHeader) * sizeof(int64_t);
    const auto* text = reinterpret_cast<const char*>(segments[worker] + kKeyHeader);
    return Status(Code::kInternal,
                  NameOf(worker) + ": " + std::string(text, std::min<uint64_t>(bytes, room)));
  }
  for (size_t worker = 1; worker < workers; ++worker) {
    if (segments[worker][1] == segments[0][1]) continue;
    return Status(
        Code::kFailedPrecondition,
        "expected the same tables and features on all workers, got tables or features on " +
            NameOf(worker) +
            " that differ from those of worker 0; build the model alike everywhere");
  }
  std::vector<uint32_t> rows_asked(workers * tables);
  std::vector<size_t> asked_keys(tables, 0);
  std::vector<std::vector<AskedBags>> bags(tables);
  std::vector<const int64_t*> sections;
  for (size_t worker = 0; worker < workers; ++worker) {
    uint64_t left = static_cast<uint64_t>(splits[worker]);
    if (left < kKeyHeader + tables) return damaged(worker);
    left -= kKeyHeader + tables;
    const int64_t* from = segments[worker] + kKeyHeader + tables;
    for (size_t table = 0; table < tables; ++table) {
      const auto count = static_cast<uint64_t>(segments[worker][kKeyHeader + table]);
      if (count > left) return damaged(worker);
      sections.push_back(from);
      size_t rows = 0;
      if (!served.placements[table].pools) {
        if (count % served.words_of_key(table) != 0) return damaged(worker);
        rows = count / served.words_of_key(table);
        asked_keys[table] += rows;
      } else if (!ReadBags(from, count, hold, &bags[table], &rows)) {
        return damaged(worker);
      }
      rows_asked[worker * tables + table] = static_cast<uint32_t>(rows);
      from += count;
      left -= count;
    }
    if (left != 0 && !AreKeysToCome(from, left, tables)) return damaged(worker);
  }
  std::vector<size_t> starts(1, 0);
  for (size_t keys : asked_keys) starts.push_back(starts.back() + keys);
  const RowSegments all(served.dims, rows_asked);
  return AskedKeys{all,
                   all.OnlyOf(served.rank, OnAll(served.placements)),
                   std::move(hold),
                   std::move(sections),
                   nullptr,
                   nullptr,
                   nullptr,
                   std::move(starts),
                   std::move(bags)};
}

void ForKeysToCome(size_t tables, const int64_t* message, size_t words, const int32_t* splits,
                   size_t workers, const VisitTableKeys& visit) {
  const int64_t *segment = message, *const last = message + words;
  for (size_t worker = 0; worker < workers; ++worker) {
    uint64_t left = static_cast<uint64_t>(std::max(splits[worker], 0));
    if (left > static_cast<uint64_t>(last - segment)) return;
    const int64_t* const header = std::exchange(segment, segment + left);
    if (left < kKeyHeader + tables || header[0] != 0) continue;
    left -= kKeyHeader + tables;
    const int64_t* at = header + kKeyHeader + tables;
    for (size_t table = 0; table < tables; ++table) {
      const auto count = std::min(static_cast<uint64_t>(header[kKeyHeader + table]), left);
      at += count;
      left -= count;
    }
    if (!AreKeysToCome(at, left, tables)) continue;
    const int64_t* const to_come = std::exchange(at, at + tables);
    for (size_t table = 0; table < tables; ++table) {
      const auto n = static_cast<size_t>(to_come[table]);
      if (n > 0) visit(table, reinterpret_cast<const Key*>(at), n);
      at += n;
    }
  }
}

void CopyKeys(const ServedTables& served, const AskedKeys& asked, size_t table, Key* keys,
              int64_t* counts, int64_t* said) {
  if (served.placements[table].pools) return;
  const size_t tables = served.dims.size();
  for (size_t worker = 0; worker < asked.segments.workers(); ++worker) {
    const int64_t* from = asked.sections[worker * tables + table];
    const size_t n = asked.segments.count(worker, table);
    if (n == 0) continue;
    std::memcpy(keys, from, n * sizeof(Key));
    keys += n;
    if (served.has_counts(table)) counts = std::copy_n(from + n, n, counts);
    if (served.has_said(table)) {
      said = std::copy_n(from + (served.words_of_key(table) - 1) * n, n, said);
    }
  }
}

Result<AskedKeys> ReadKeys(const ServedTables& served, const int64_t* message, size_t words,
                           const int32_t* splits, size_t workers,
                           std::shared_ptr<const void> hold) {
  auto found = FindKeys(served, message, words, splits, workers, std::move(hold));
  if (!found.ok()) return found.status();
  AskedKeys& asked = found.value();
  const size_t tables = served.dims.size();
  const auto any = [](const std::vector<bool>& tables_that) {
    return std::find(tables_that.begin(), tables_that.end(), true) != tables_that.end();
  };
  const bool any_pools = std::any_of(served.placements.begin(), served.placements.end(),
                                     [](const TablePlacement& each) { return each.pools; });
  const bool any_counts = any(served.counts), any_says = any(served.says);
  if (workers == 1 && !any_pools && !any_counts && !any_says) {
    asked.keys = reinterpret_cast<const Key*>(message + kKeyHeader + tables);
    return found;
  }
  struct Copied {
    std::vector<Key> keys;
    std::vector<int64_t> counts, said;
  };
  auto copied = std::make_shared<Copied>();
  copied->keys.resize(asked.starts.back());
  if (any_counts) copied->counts.assign(asked.starts.back(), 1);
  if (any_says) copied->said.assign(asked.starts.back(), 0);
  for (size_t table = 0; table < tables; ++table) {
    const size_t first = asked.starts[table];
    CopyKeys(served, asked, table, copied->keys.data() + first, copied->counts.data() + first,
             copied->said.data() + first);
  }
  asked.keys = copied->keys.data();
  if (any_counts) asked.counts = copied->counts.data();
  if (any_says) asked.said = copied->said.data();
  asked.hold = std::move(copied);
  return found;
}

}  // namespace sok
