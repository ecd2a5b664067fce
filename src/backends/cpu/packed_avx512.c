#include "backends/cpu/packed_kernels.inc"
