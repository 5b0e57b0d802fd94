// The program that applies the rule SOK_RULE to rows of SOK_DIM floats.
#include "core/gpu/kernels/rule.h"
