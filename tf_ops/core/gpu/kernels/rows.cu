// The program that reads and writes rows of SOK_DIM floats.
#include "core/gpu/kernels/exchanged.h"
#include "core/gpu/kernels/mask_gather.h"
#include "core/gpu/kernels/pooling.h"
#include "core/gpu/kernels/rows.h"
#include "core/gpu/kernels/update.h"
