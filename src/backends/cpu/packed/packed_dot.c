#include "backends/cpu/packed/packed_kernels.inc"
