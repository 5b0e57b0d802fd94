#include "core/transport/pending_exchange.h"

#include <cstring>
#include <utility>

#include "core/base/status_macros.h"

namespace sok {

PendingExchange::PendingExchange(const Group* group)
    : group_(group),
      others_(group->ranks.size()),
      unannounced_(others_.size() - 1),
      unarrived_(others_.size()) {}

Status PendingExchange::Begin(ExchangeRequest request, uint64_t turn) {
  request_ = std::move(request);
  turn_ = turn;
  begun_ = true;
  for (size_t worker = 0; worker < others_.size(); ++worker) {
    if (!others_[worker].announced) continue;
    SOK_RETURN_IF_ERROR(CheckFits(worker, others_[worker].header));
  }
  return unannounced_ == 0 ? Place() : Status();
}

Status PendingExchange::CheckFits(size_t worker, const FrameHeader& header) const {
  if (header.row_type == request_.row_type &&
      header.bytes == request_.lead_bytes + header.count * request_.row_bytes) {
    return Status();
  }
  return InvalidArgument("expected rows of " + std::to_string(request_.row_bytes) +
                         " bytes, of one type and shape on all workers, in the exchange '" +
                         request_.name + "', got " + std::to_string(header.count) + " rows in " +
                         std::to_string(header.bytes) + " bytes from worker " +
                         std::to_string(group_->ranks[worker]) +
                         ", or rows of another type; build the same model on every worker");
}

Result<char*> PendingExchange::Announce(size_t worker, const FrameHeader& header) {
  // After a failure no rows are placed: the caller's memory may be gone.
  if (!status_.ok()) return status_;
  Other& other = others_[worker];
  other.announced = true;
  other.header = header;
  --unannounced_;
  if (begun_) {
    Status status = CheckFits(worker, header);
    if (status.ok() && unannounced_ == 0) status = Place();
    if (!status.ok()) return status;
  }
  if (other.into == nullptr && header.bytes > 0) {
    other.early.reset(new char[header.bytes]);
    return other.early.get();
  }
  return other.into;
}

Status PendingExchange::Place() {
  std::vector<size_t> counts(others_.size());
  for (size_t worker = 0; worker < others_.size(); ++worker) {
    counts[worker] = worker == group_->own ? part(worker).count
                                           : static_cast<size_t>(others_[worker].header.count);
  }
  SOK_ASSIGN_OR_RETURN(char* into, request_.allocate(counts));
  for (size_t worker = 0; worker < others_.size(); ++worker) {
    Other& other = others_[worker];
    other.into = into;
    into += request_.lead_bytes + counts[worker] * request_.row_bytes;
    if (other.early != nullptr && other.arrived) {
      std::memcpy(other.into, other.early.get(), other.header.bytes);
      other.early.reset();
    }
  }
  placed_ = own_is_due_ = true;
  return Status();
}

void PendingExchange::Arrive(size_t worker) {
  Other& other = others_[worker];
  other.arrived = true;
  --unarrived_;
  if (other.early != nullptr && placed_) {
    std::memcpy(other.into, other.early.get(), other.header.bytes);
    other.early.reset();
  }
}

bool PendingExchange::OwnIsDue() { return std::exchange(own_is_due_, false); }

void PendingExchange::CopyOwn() {
  const ExchangePart& own = part(group_->own);
  char* into = others_[group_->own].into;
  const auto copy = [&into](const void* rows, size_t bytes) {
    if (bytes > 0) std::memcpy(into, rows, bytes);
    into += bytes;
  };
  if (own.pieces.empty()) copy(own.rows, own.count * request_.row_bytes);
  for (const ExchangePiece& piece : own.pieces) copy(piece.at, piece.bytes);
}

void PendingExchange::Fail(const Status& status) {
  if (status_.ok()) status_ = status;
}

bool PendingExchange::TakeDone() {
  if (done_ || !begun_ || holds_ > 0) return false;
  if (status_.ok() && (unarrived_ > 0 || frames_ > 0)) return false;
  done_ = true;
  return true;
}

std::vector<int> PendingExchange::Missing() const {
  std::vector<int> missing;
  for (size_t worker = 0; worker < others_.size(); ++worker) {
    if (others_[worker].arrived || worker == group_->own) continue;
    missing.push_back(group_->ranks[worker]);
  }
  return missing;
}

}  // namespace sok
