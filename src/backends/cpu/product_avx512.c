#include "backends/cpu/product.inc"
