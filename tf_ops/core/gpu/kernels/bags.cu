// The program of hashed bags.
#include "core/gpu/kernels/bag_gradient.h"
#include "core/gpu/kernels/bags.h"
