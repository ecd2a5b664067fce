#include "backends/cpu/kernels.inc"
