// Requests that are made ahead of the steps that need them, while other steps run.
//
//   RequestsAhead ahead(/*signature=*/"…", /*most=*/4);
//   ahead.Add(request, features);
//
//   taken = RequestsAhead::Take("…", features);  // in the step
//
// A step gets a request that was made of the keys that it has, whatever became of the batches in
// between: all keys are compared.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/collection/request.h"

namespace sok {

// The requests of one look-ahead, from the oldest to the newest. All functions are thread-safe.
class RequestsAhead {
 public:
  // `signature` says all that a request depends on beside the keys. At most `most` requests are
  // kept: the oldest ones, which no step has taken, make room.
  RequestsAhead(std::string signature, size_t most);
  // Forgets the requests.
  ~RequestsAhead();
  RequestsAhead(const RequestsAhead&) = delete;

  // Adds a request that was made of features.
  void Add(std::shared_ptr<const CollectionRequest> request, std::vector<FeatureBags> features);

  struct Taken {
    std::shared_ptr<const CollectionRequest>
        request;  // null: there is none, the step makes its own
    // The later requests of the same look-ahead, but for those that a call before returned.
    std::vector<std::shared_ptr<const CollectionRequest>> to_come;
  };
  // Returns and removes the oldest request of this process that was made of equal features under
  // this signature.
  static Taken Take(const std::string& signature, const std::vector<FeatureBags>& features);

 private:
  struct Entry {
    std::shared_ptr<const CollectionRequest> request;
    std::vector<FeatureBags> features;  // as they were before the request was made
    bool is_told;                       // Taken::to_come has been this one
  };

  const std::string signature_;
  const size_t most_;
  std::deque<Entry> entries_;
};

}  // namespace sok
