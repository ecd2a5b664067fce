/* Replaces tiles_amx.c and product_amx.c on processors of other families: there is no AMX, and nothing uses it. */
#include "backends/cpu/cpu.h"

bool wn_cpu_has_amx(void) {
  return false;
}
bool wn_cpu_has_amx_int8(void) {
  return false;
}
void wn_cpu_deny_amx(bool denied) {
  (void)denied;
}
size_t wn_cpu_amx_scratch(int threads, int64_t N, int64_t K, bool c_bf16) {
  (void)threads, (void)N, (void)K, (void)c_bf16;
  return 0;
}
void wn_cpu_product_amx(const struct wn_exec *exec, const struct wn_cpu_amx_product *x) {
  (void)exec, (void)x;
}
