#include "backends/cpu/elementwise/kernels.inc"
