#include "core/transport/pending_exchange.h"

#include <cstring>
#include <utility>

#include "core/base/status_macros.h"

namespace sok {

PendingExchange::PendingExchange(int rank, int size)
    : rank_(rank),
      others_(static_cast<size_t>(size)),
      unannounced_(static_cast<size_t>(size) - 1),
      unarrived_(static_cast<size_t>(size)) {}

Status PendingExchange::Begin(ExchangeRequest request, uint64_t turn) {
  request_ = std::move(request);
  turn_ = turn;
  begun_ = true;
  for (size_t worker = 0; worker < others_.size(); ++worker) {
    if (!others_[worker].announced) continue;
    SOK_RETURN_IF_ERROR(CheckFits(static_cast<int>(worker), others_[worker].header));
  }
  return unannounced_ == 0 ? Place() : Status();
}

Status PendingExchange::CheckFits(int worker, const FrameHeader& header) const {
  if (header.row_type == request_.row_type &&
      header.bytes == header.count * static_cast<uint64_t>(request_.row_bytes)) {
    return Status();
  }
  return InvalidArgument("expected rows of " + std::to_string(request_.row_bytes) +
                         " bytes, of one type and shape on all workers, in the exchange '" +
                         request_.name + "', got " + std::to_string(header.count) + " rows in " +
                         std::to_string(header.bytes) + " bytes from worker " +
                         std::to_string(worker) +
                         ", or rows of another type; build the same model on every worker");
}

Result<char*> PendingExchange::Announce(int worker, const FrameHeader& header) {
  // After a failure no rows are placed: the caller's memory may be gone.
  if (!status_.ok()) return status_;
  Other& other = others_[static_cast<size_t>(worker)];
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
    counts[worker] = static_cast<int>(worker) == rank_ ? request_.parts[worker].count
                                                       : others_[worker].header.count;
  }
  SOK_ASSIGN_OR_RETURN(char* into, request_.allocate(counts));
  for (size_t worker = 0; worker < others_.size(); ++worker) {
    Other& other = others_[worker];
    other.into = into;
    into += counts[worker] * request_.row_bytes;
    if (other.early != nullptr && other.arrived) {
      std::memcpy(other.into, other.early.get(), other.header.bytes);
      other.early.reset();
    }
  }
  placed_ = own_is_due_ = true;
  return Status();
}

void PendingExchange::Arrive(int worker) {
  Other& other = others_[static_cast<size_t>(worker)];
  other.arrived = true;
  --unarrived_;
  if (other.early != nullptr && placed_) {
    std::memcpy(other.into, other.early.get(), other.header.bytes);
    other.early.reset();
  }
}

bool PendingExchange::OwnIsDue() { return std::exchange(own_is_due_, false); }

void PendingExchange::CopyOwn() {
  const ExchangePart& own = request_.parts[static_cast<size_t>(rank_)];
  const size_t bytes = own.count * request_.row_bytes;
  if (bytes > 0) std::memcpy(others_[static_cast<size_t>(rank_)].into, own.rows, bytes);
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

std::string PendingExchange::Missing() const {
  std::string missing;
  for (size_t worker = 0; worker < others_.size(); ++worker) {
    if (others_[worker].arrived || static_cast<int>(worker) == rank_) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(worker);
  }
  return missing;
}

}  // namespace sok
