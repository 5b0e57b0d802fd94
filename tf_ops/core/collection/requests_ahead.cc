#include "core/collection/requests_ahead.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace sok {
namespace {

// All of this process, and the mutex that guards them and their entries.
struct All {
  std::mutex mu;
  std::vector<RequestsAhead*> open;
};

All& ThoseOfProcess() {
  static auto* const all = new All;  // never destroyed: kernels may outlive static objects
  return *all;
}

template <typename T>
bool AreSame(const T* one, const T* other, size_t n) {
  if (one == nullptr || other == nullptr) return one == other;
  return one == other || n == 0 || std::memcmp(one, other, n * sizeof(T)) == 0;
}

bool AreEqual(const FeatureBags& one, const FeatureBags& other) {
  return one.n == other.n && one.bags == other.bags && one.length == other.length &&
         (one.n == 0 || AreSame(one.keys, other.keys, one.n)) &&
         AreSame(one.splits, other.splits, one.bags + 1) && AreSame(one.said, other.said, one.n);
}

}  // namespace

RequestsAhead::RequestsAhead(std::string signature, size_t most)
    : signature_(std::move(signature)), most_(most) {
  All& all = ThoseOfProcess();
  std::lock_guard<std::mutex> guard(all.mu);
  all.open.push_back(this);
}

RequestsAhead::~RequestsAhead() {
  All& all = ThoseOfProcess();
  std::lock_guard<std::mutex> guard(all.mu);
  all.open.erase(std::find(all.open.begin(), all.open.end(), this));
}

void RequestsAhead::Add(std::shared_ptr<const CollectionRequest> request,
                        std::vector<FeatureBags> features) {
  Entry oldest;  // freed without the lock
  std::lock_guard<std::mutex> guard(ThoseOfProcess().mu);
  if (entries_.size() >= most_) {
    oldest = std::move(entries_.front());
    entries_.pop_front();
  }
  entries_.push_back({std::move(request), std::move(features), false});
}

RequestsAhead::Taken RequestsAhead::Take(const std::string& signature,
                                         const std::vector<FeatureBags>& features) {
  All& all = ThoseOfProcess();
  Entry entry;  // freed without the lock
  Taken taken;
  std::lock_guard<std::mutex> guard(all.mu);
  for (RequestsAhead* each : all.open) {
    if (each->signature_ != signature) continue;
    std::deque<Entry>& entries = each->entries_;
    const auto at = std::find_if(entries.begin(), entries.end(), [&](const Entry& one) {
      return std::equal(one.features.begin(), one.features.end(), features.begin(), features.end(),
                        AreEqual);
    });
    if (at == entries.end()) continue;
    for (auto later = at + 1; later != entries.end(); ++later) {
      if (!std::exchange(later->is_told, true)) taken.to_come.push_back(later->request);
    }
    entry = std::move(*at);
    entries.erase(at);
    taken.request = entry.request;
    break;
  }
  return taken;
}

}  // namespace sok
