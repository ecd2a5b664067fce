/* Attention tile operations for AVX512. */
#include "backends/cpu/attention/tile.inc"
