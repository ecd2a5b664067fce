/* Attention tile operations for AVX2. */
#include "backends/cpu/attention/tile.inc"
