// The program that finds, makes and sorts rows.
#include "core/gpu/kernels/index.h"
#include "core/gpu/kernels/sort.h"
