/* AMX tiles: whether this process may use them, and their shapes. product_amx.c multiplies bf16 in them,
 * packed/packed_tiles_amx.c integers. */
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "backends/cpu/cpu.h"
#include "base/context.h"

static pthread_once_t amx_once = PTHREAD_ONCE_INIT;
static bool amx_bf16, amx_int8;
static atomic_bool amx_denied;

static bool amx_feature(const char *name) {
  for (const char *const *names = wn_cpu_features(); *names; names++)
    if (!strcmp(*names, name)) return true;
  return false;
}

/* The kernel lets a process use tile registers only if it asks (Documentation/arch/x86/xstate.rst). */
static void amx_ask(void) {
  enum { ASK = 0x1023, TILE_DATA = 18 };
  amx_bf16 = amx_feature("amx-bf16") && amx_feature("avx512bf16");
  amx_int8 = amx_feature("amx-int8") && amx_feature("avx512vnni");
  if (amx_bf16 || amx_int8) {
    const bool permitted = syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
    amx_bf16 = amx_bf16 && permitted, amx_int8 = amx_int8 && permitted;
  }
}

bool wn_cpu_has_amx(void) {
  pthread_once(&amx_once, amx_ask);
  return amx_bf16 && !atomic_load(&amx_denied);
}

bool wn_cpu_has_amx_int8(void) {
  pthread_once(&amx_once, amx_ask);
  return amx_int8 && !atomic_load(&amx_denied);
}

void wn_cpu_deny_amx(bool denied) {
  atomic_store(&amx_denied, denied);
}

struct amx_config {
  uint8_t palette, start, unused[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

void wn_cpu_amx_begin(const struct wn_cpu_amx_shape *tiles) {
  _Alignas(64) struct amx_config config = {.palette = 1};
  for (int i = 0; i < WN_CPU_AMX_TILES; i++) config.bytes[i] = tiles[i].bytes, config.rows[i] = tiles[i].rows;
  __asm__ volatile("" : : "r"(&config) : "memory"); /* GCC 12 assumes that only the first eight bytes are read */
  _tile_loadconfig(&config);
}

void wn_cpu_amx_end(void) {
  _tile_release();
}
