/* What this CPU supports, and how many CPUs this process may use. */
#include "base/context.h"
#include "base/error.h"
#include "base/open.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char cpu_name[64] = "unknown";
static const char *features[32];
static enum wn_isa best_isa = WN_ISA_REF;

#if defined(__x86_64__)
static bool has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
}

/* CPUID leaf 7, EDX: the bits of amx-bf16, amx-tile and amx-int8. */
enum { AMX_BF16 = 22, AMX_TILE = 24, AMX_INT8 = 25 };
static bool has_amx(int products) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (1u << products)) && (d & (1u << AMX_TILE));
}

static void cpu_detect(void) {
  __builtin_cpu_init();
  unsigned words[12] = {0};
  bool named = true;
  for (unsigned i = 0; i < 3; i++)
    named =
        named && __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
  if (named) {
    char text[49] = {0};
    memcpy(text, words, 48);
    const char *start = text;
    while (*start == ' ') start++;
    if (*start) snprintf(cpu_name, sizeof cpu_name, "%s", start);
  }

  int n = 0;
#define FEATURE(test, name)                                                                                            \
  if (test) features[n++] = name
  FEATURE(__builtin_cpu_supports("sse4.2"), "sse4.2");
  FEATURE(__builtin_cpu_supports("avx"), "avx");
  FEATURE(__builtin_cpu_supports("avx2"), "avx2");
  FEATURE(__builtin_cpu_supports("fma"), "fma");
  FEATURE(has_f16c() && __builtin_cpu_supports("avx"), "f16c");
  FEATURE(__builtin_cpu_supports("avx512f"), "avx512f");
  FEATURE(__builtin_cpu_supports("avx512bw"), "avx512bw");
  FEATURE(__builtin_cpu_supports("avx512dq"), "avx512dq");
  FEATURE(__builtin_cpu_supports("avx512vl"), "avx512vl");
  FEATURE(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  FEATURE(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  FEATURE(has_amx(AMX_BF16), "amx-bf16");
  FEATURE(has_amx(AMX_INT8), "amx-int8");
#undef FEATURE
  features[n] = NULL;

  /* The sets for which CMakeLists.txt compiles the kernel files. */
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  best_isa = avx512 ? WN_ISA_AVX512 : avx2 ? WN_ISA_AVX2 : WN_ISA_REF;
}
#elif defined(__aarch64__)
static void cpu_detect(void) {
  int n = 0;
  features[n++] = "neon"; /* every 64-bit ARM processor has it */
  if (wn_cpu_has_dot()) features[n++] = "dotprod";
  features[n] = NULL;
  best_isa = WN_ISA_AVX2;
}
#else
static void cpu_detect(void) {}
#endif

bool wn_cpu_has_dot(void) {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  int has = 0;
  size_t bytes = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &bytes, NULL, 0) == 0 && has;
#else
  return false;
#endif
}

const char *wn_isa_name(enum wn_isa isa) {
#if defined(__aarch64__)
  return isa == WN_ISA_AVX2 ? "neon" : "ref";
#else
  return isa == WN_ISA_AVX512 ? "avx512" : isa == WN_ISA_AVX2 ? "avx2" : "ref";
#endif
}

const char *wn_cpu_name(void) {
  pthread_once(&once, cpu_detect);
  return cpu_name;
}

const char *const *wn_cpu_features(void) {
  pthread_once(&once, cpu_detect);
  return features;
}

enum wn_isa wn_cpu_best_isa(void) {
  pthread_once(&once, cpu_detect);
  return best_isa;
}

wn_status wn_cpu_select_isa(wn_context *ctx, enum wn_isa *out) {
  pthread_once(&once, cpu_detect);
  *out = best_isa;
  const char *forced = getenv("WINNOW_ISA");
  if (!forced || !*forced) return WN_OK;
  for (int isa = WN_ISA_REF; isa <= (WN_HAS_AVX512 ? WN_ISA_AVX512 : WN_ISA_AVX2); isa++) {
    if (strcmp(forced, wn_isa_name((enum wn_isa)isa)) != 0) continue;
    if (isa > (int)best_isa)
      return wn_fail(ctx, WN_ERR_UNSUPPORTED, "WINNOW_ISA is %s, which this CPU (%s) lacks; the best it has is %s",
                     forced, cpu_name, wn_isa_name(best_isa));
    *out = (enum wn_isa)isa;
    return WN_OK;
  }
#if !WN_HAS_AVX512
  if (!strcmp(forced, "avx2") || !strcmp(forced, "avx512"))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "WINNOW_ISA is %s, which is of another family of processors; the best here is %s", forced,
                   wn_isa_name(best_isa));
#endif
  return wn_fail(ctx, WN_ERR_ARGUMENT, "WINNOW_ISA is \"%s\"; it must be %s", forced,
                 WN_HAS_AVX512 ? "ref, avx2 or avx512" : "ref or neon");
}

static bool cpu_read_line(const char *path, char *line, int size) {
  FILE *f = wn_open_system(path);
  if (!f) return false;
  bool ok = fgets(line, size, f) != NULL;
  fclose(f);
  return ok;
}

/* CPUs that a cgroup quota allows, rounded up; 0: no quota. */
static long cpu_quota(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  return (long)((quota + period - 1) / period);
}

/* The process's own cgroup and every parent may have a quota: the smallest counts. */
static long cpu_cgroup(void) {
  long least = 0;
  FILE *f = wn_open_system("/proc/self/cgroup");
  if (!f) return 0;
  char line[4096];
  while (fgets(line, sizeof line, f)) {
    char *controllers = strchr(line, ':');
    if (!controllers) continue;
    char *path = strchr(controllers + 1, ':');
    if (!path) continue;
    *path++ = 0;
    controllers++;
    path[strcspn(path, "\n")] = 0;
    bool v2 = *controllers == 0;
    if (!v2 && !strstr(controllers, "cpu")) continue;
    for (;;) {
      char file[8192], text[128];
      long long quota = 0, period = 0;
      if (v2) {
        snprintf(file, sizeof file, "/sys/fs/cgroup%s/cpu.max", strcmp(path, "/") == 0 ? "" : path);
        if (!cpu_read_line(file, text, sizeof text) || sscanf(text, "%lld %lld", &quota, &period) != 2) quota = 0;
      } else {
        snprintf(file, sizeof file, "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", strcmp(path, "/") == 0 ? "" : path);
        if (!cpu_read_line(file, text, sizeof text) || sscanf(text, "%lld", &quota) != 1) quota = 0;
        snprintf(file, sizeof file, "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", strcmp(path, "/") == 0 ? "" : path);
        if (!cpu_read_line(file, text, sizeof text) || sscanf(text, "%lld", &period) != 1) period = 0;
      }
      long cpus = cpu_quota(quota, period);
      if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
      char *slash = strrchr(path, '/');
      if (!slash || strcmp(path, "/") == 0) break;
      if (slash == path)
        slash[1] = 0;
      else
        *slash = 0;
    }
  }
  fclose(f);
  return least;
}

int wn_cpu_count(void) {
  long cpus = 0;
  /* A machine with more than 1024 CPUs needs a larger set than the fixed one. */
  for (int size = 1024; size <= 1 << 16 && cpus == 0; size *= 4) {
    cpu_set_t *set = CPU_ALLOC(size);
    if (!set) break;
    size_t bytes = CPU_ALLOC_SIZE(size);
    if (sched_getaffinity(0, bytes, set) == 0) cpus = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
  }
  if (cpus < 1) cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (cpus < 1) cpus = 1;
  long quota = cpu_cgroup();
  return (int)(quota > 0 && quota < cpus ? quota : cpus);
}
