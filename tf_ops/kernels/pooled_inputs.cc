#include "kernels/pooled_inputs.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sok {

namespace tf = tensorflow;

namespace {

absl::Status Refuse(const CollectionPlan& plan, size_t feature, const std::string& what) {
  return absl::InvalidArgumentError("feature '" + plan.features[feature] + "': " + what);
}

}  // namespace

absl::Status PooledInputs::Read(tf::OpKernelContext* ctx, const CollectionPlan& plan,
                                const std::vector<int64_t>& kinds,
                                const std::vector<int64_t>& checked,
                                const std::vector<int64_t>& weighted) {
  TF_RETURN_IF_ERROR(ctx->input_list("keys", &keys));
  TF_RETURN_IF_ERROR(ctx->input_list("splits", &splits));
  TF_RETURN_IF_ERROR(ctx->input_list("host_splits", &host_splits));
  TF_RETURN_IF_ERROR(ctx->input_list("checked_keys", &checked_keys));
  TF_RETURN_IF_ERROR(ctx->input_list("weights", &weights));
  const size_t features = plan.features.size();
  const auto counts = [](const tf::OpInputList& list, size_t n) {
    return static_cast<size_t>(list.size()) == n;
  };
  const auto by_splits = static_cast<size_t>(std::count(kinds.begin(), kinds.end(), 2));
  if (!counts(keys, features) || !counts(splits, by_splits) ||
      !counts(checked_keys, checked.size()) || !counts(weights, weighted.size())) {
    return absl::InvalidArgumentError(
        "expected " + std::to_string(features) + " inputs of keys, " + std::to_string(by_splits) +
        " of splits, " + std::to_string(weighted.size()) + " of weights and " +
        std::to_string(checked.size()) + " of keys to check, got " + std::to_string(keys.size()) +
        ", " + std::to_string(splits.size()) + ", " + std::to_string(weights.size()) + " and " +
        std::to_string(checked_keys.size()));
  }
  split.assign(features, nullptr);
  weight.assign(features, nullptr);
  int next_splits = 0;
  for (size_t feature = 0; feature < features; ++feature) {
    const tf::Tensor& of_feature = keys[static_cast<int>(feature)];
    const auto n = static_cast<size_t>(of_feature.NumElements());
    FeatureBags read{nullptr, nullptr, n, n, nullptr, 1};
    if (kinds[feature] == 1) {
      if (of_feature.dims() == 0) {
        return Refuse(plan, feature, "expected keys of one dimension or more, got a scalar");
      }
      read.bags = static_cast<size_t>(of_feature.dim_size(0));
      read.length = read.bags == 0 ? 0 : n / read.bags;
    } else if (kinds[feature] == 2) {
      const tf::Tensor& on_host = host_splits[next_splits];
      if (on_host.dims() != 1 || on_host.NumElements() == 0 ||
          splits[next_splits].shape() != on_host.shape()) {
        return Refuse(plan, feature,
                      "expected a vector of row splits, which has at least one element");
      }
      read.bags = static_cast<size_t>(on_host.NumElements()) - 1;
      read.splits = on_host.flat<int64_t>().data();
      read.hold = Hold(on_host);
      split[feature] = &splits[next_splits++];
    }
    TF_RETURN_IF_ERROR(ToAbsl(CollectionRequest::CheckBags(plan, feature, read)));
    bags.push_back(std::move(read));
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    const auto feature = static_cast<size_t>(checked[i]);
    const LookupKeys on_host = KeysOf(checked_keys[static_cast<int>(i)]);
    if (on_host.n != bags[feature].n) {
      return Refuse(plan, feature,
                    "expected its " + std::to_string(bags[feature].n) +
                        " keys among those to check, got " + std::to_string(on_host.n));
    }
    FeatureBags to_check = bags[feature];
    to_check.keys = on_host.keys;
    TF_RETURN_IF_ERROR(ToAbsl(CollectionRequest::CheckKeys(plan, feature, to_check)));
  }
  for (size_t i = 0; i < weighted.size(); ++i) {
    const auto feature = static_cast<size_t>(weighted[i]);
    const tf::Tensor& of_feature = weights[static_cast<int>(i)];
    if (static_cast<size_t>(of_feature.NumElements()) != bags[feature].n) {
      return Refuse(plan, feature,
                    "expected one weight a key, of which there are " +
                        std::to_string(bags[feature].n) + ", got shape " +
                        of_feature.shape().DebugString());
    }
    weight[feature] = &of_feature;
  }
  return absl::OkStatus();
}

}  // namespace sok
