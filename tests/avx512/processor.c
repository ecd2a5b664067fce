/* Which processor the emulation claims to be (processor.h). */
#include "avx512/processor.h"
#include <stdlib.h>

enum { AVX512, VNNI, BF16, AMX };

static int processor(void) {
  static const char *const names[] = {"avx512", "vnni", "bf16", "amx"};
  const char *name = getenv("WINNOW_PROCESSOR");
  if (!name) return AMX;
  for (int i = 0; i < 4; i++)
    if (!strcmp(name, names[i])) return i;
  abort();
}

int wn_emulated_supports(const char *feature) {
  const int from = !strcmp(feature, "avx512vnni") ? VNNI : !strcmp(feature, "avx512bf16") ? BF16 : AVX512;
  return processor() >= from;
}

unsigned wn_emulated_leaf_7(void) {
  enum { AMX_BF16 = 22, AMX_TILE = 24, AMX_INT8 = 25 };
  return processor() >= AMX ? 1u << AMX_BF16 | 1u << AMX_TILE | 1u << AMX_INT8 : 0;
}
