#include "core/transport/two_level_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"

namespace sok {
namespace {

// So many blocks are kept, of at most so many bytes each.
constexpr size_t kMostSpare = 4, kMostSpareBytes = size_t{64} << 20;

}  // namespace

SpareMemory::Block SpareMemory::Take(size_t bytes) {
  std::lock_guard<std::mutex> guard(mu_);
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [bytes](const Block& each) { return each.bytes >= bytes; });
  if (found == blocks_.end()) {
    const size_t enough = bytes + bytes / 8;  // the next exchange may have a few rows more
    return {std::unique_ptr<char[]>(new char[enough]), enough};
  }
  Block block = std::move(*found);
  blocks_.erase(found);
  return block;
}

void SpareMemory::Give(Block block) {
  if (block.bytes == 0 || block.bytes > kMostSpareBytes) return;
  std::lock_guard<std::mutex> guard(mu_);
  const auto at = std::find_if(blocks_.begin(), blocks_.end(),
                               [&block](const Block& each) { return each.bytes >= block.bytes; });
  blocks_.insert(at, std::move(block));
  if (blocks_.size() > kMostSpare) blocks_.erase(blocks_.begin());
}

TwoLevelExchange::~TwoLevelExchange() {
  spare_->Give(std::move(workers_.received));
  spare_->Give(std::move(between_.received));
}

ExchangeRequest TwoLevelExchange::AmongWorkers() {
  if (is_for_all()) return Sending({{request_.parts[0]}}, &workers_);
  Runs runs(hosts_[0].size());
  for (size_t place = 0; place < runs.size(); ++place) {
    for (const std::vector<int>& host : hosts_) {
      runs[place].push_back(request_.parts[static_cast<size_t>(host[place])]);
    }
  }
  return Sending(runs, &workers_);
}

Result<ExchangeRequest> TwoLevelExchange::AmongHosts(uint64_t turn) {
  SOK_ASSIGN_OR_RETURN(const Runs received, Received(workers_, is_for_all() ? 1 : hosts_.size()));
  Runs runs(received[0].size());
  for (size_t host = 0; host < runs.size(); ++host) {
    for (const auto& from : received) runs[host].push_back(from[host]);
  }
  ExchangeRequest request = Sending(runs, &between_);
  request.name += " between hosts";
  request.turn = turn;
  return request;
}

Status TwoLevelExchange::Finish() {
  SOK_ASSIGN_OR_RETURN(const Runs received, Received(between_, hosts_[0].size()));
  std::vector<const ExchangePart*> parts(hosts_.size() * hosts_[0].size());
  for (size_t host = 0; host < hosts_.size(); ++host) {
    for (size_t place = 0; place < hosts_[host].size(); ++place) {
      parts[static_cast<size_t>(hosts_[host][place])] = &received[host][place];
    }
  }
  std::vector<size_t> counts;
  for (const ExchangePart* part : parts) counts.push_back(part->count);
  SOK_ASSIGN_OR_RETURN(char* into, request_.allocate(counts));
  for (const ExchangePart* part : parts) {
    const size_t bytes = part->count * request_.row_bytes;
    if (bytes > 0) std::memcpy(into, part->rows, bytes);
    into += bytes;
  }
  return Status();
}

ExchangeRequest TwoLevelExchange::Sending(const Runs& runs, Level* level) const {
  ExchangeRequest request;
  request.name = request_.name;
  request.turn = request_.turn;
  request.row_type = request_.row_type;
  request.row_bytes = request_.row_bytes;
  request.lead_bytes = runs[0].size() * sizeof(uint64_t);
  level->counts.reserve(runs.size() * runs[0].size());  // pieces point into it
  for (const auto& to : runs) {
    ExchangePart part;
    part.pieces.push_back({level->counts.data() + level->counts.size(), request.lead_bytes});
    for (const ExchangePart& run : to) {
      level->counts.push_back(run.count);
      part.count += run.count;
      part.pieces.push_back({run.rows, run.count * request_.row_bytes});
    }
    request.parts.push_back(std::move(part));
  }
  request.allocate = [this, level,
                      lead = request.lead_bytes](const std::vector<size_t>& rows) -> Result<char*> {
    level->rows = rows;
    size_t bytes = 0;
    for (const size_t count : rows) bytes += lead + count * request_.row_bytes;
    level->received = spare_->Take(bytes);
    return level->received.data.get();
  };
  return request;
}

Result<TwoLevelExchange::Runs> TwoLevelExchange::Received(const Level& level, size_t runs) const {
  Runs received;
  const char* at = level.received.data.get();
  for (size_t rows : level.rows) {
    std::vector<uint64_t> counts(runs);
    std::memcpy(counts.data(), at, runs * sizeof(uint64_t));
    at += runs * sizeof(uint64_t);
    received.emplace_back();
    for (const uint64_t count : counts) {
      if (count > rows) break;
      rows -= count;
      received.back().push_back({at, static_cast<size_t>(count)});
      at += count * request_.row_bytes;
    }
    if (received.back().size() < runs || rows > 0) {
      return Status(Code::kInternal,
                    "expected runs that are all rows of a message in the exchange '" +
                        request_.name + "', got others; do all workers run one version?");
    }
  }
  return received;
}

}  // namespace sok
