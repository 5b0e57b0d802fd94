// The kernels of hashed bags on the host. They are compiled without fused sums of products, as the
// program for a GPU is.
#include "core/gpu/kernels/bag_gradient.h"
#include "core/gpu/kernels/bags.h"
