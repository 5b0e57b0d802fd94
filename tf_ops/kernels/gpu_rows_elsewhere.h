// The warning of lookups on a GPU that cannot read the rows.
#pragma once

#include "kernels/table_resource.h"
#include "tensorflow/core/framework/device_base.h"

namespace sok {

// Logs, once for each table, that lookups on a GPU cannot read its rows.
inline void LogCopies(const tensorflow::DeviceBase& device, OpenTable* resource) {
  if (!resource->BeginsCopies()) return;
  const int gpu = resource->table()->gpu();
  const std::string got = gpu < 0 ? "rows in the memory of the host"
                                  : "rows in the memory of GPU " + std::to_string(gpu) +
                                        ", which only the host looks up";
  LOG(WARNING) << "table '" << resource->name() << "': expected rows in the memory of "
               << device.name() << ", on which the model looks keys up, got " << got
               << ". Each lookup copies its keys to the host and its vectors back, and waits for "
                  "that. Load the model where it has the GPUs, driver and NVRTC that it was saved "
                  "with, or save it with device=\"cpu\"";
}

}  // namespace sok
