/* Checks the arguments of a call: see misuse.h. */
#include "base/misuse.h"

#include <string.h>
#include "base/alloc.h"

#define MISUSE_NAME(constant, name) [WN_HANDLE_##constant] = name,
static const char *const misuse_names[WN_HANDLE_KINDS] = {WN_HANDLES(MISUSE_NAME)};

void wn_handle_mark(void *block, enum wn_handle_kind kind) {
  *wn_block_word(block) = WN_BLOCK_HANDLE | (uint64_t)kind;
}

/* The word may lie in freed memory or belong to no block: sanitizers must ignore this read. */
#if defined(__clang__)
#define MISUSE_UNSEEN __attribute__((noinline, no_sanitize("address", "thread", "memory")))
#elif defined(__GNUC__)
#define MISUSE_UNSEEN __attribute__((noinline, no_sanitize("address"), no_sanitize("thread")))
#else
#define MISUSE_UNSEEN
#endif

MISUSE_UNSEEN static uint64_t misuse_word(const void *p) {
  return *(const volatile uint64_t *)wn_block_word((void *)(uintptr_t)p);
}

static bool misuse_may_be_block(const void *p) {
  return (uintptr_t)p >= 4096 && (uintptr_t)p % WN_ALIGN == 0; /* like every pointer from wn_alloc */
}

bool wn_handle_is(const void *p, enum wn_handle_kind kind) {
  return misuse_may_be_block(p) && misuse_word(p) == (WN_BLOCK_HANDLE | (uint64_t)kind);
}

const struct wn_argument *wn_misuse_find(const struct wn_argument *arguments, int count) {
  for (int i = 0; i < count; i++) {
    const struct wn_argument *a = &arguments[i];
    const bool right = a->is_enum ? a->value >= 0 && a->value < a->count
                       : a->kind  ? wn_handle_is(a->pointer, a->kind)
                                  : !a->negative && (a->pointer || a->count == 0);
    if (!right) return a;
  }
  return NULL;
}

wn_status wn_misuse_fail(wn_context *ctx, const char *function, const struct wn_argument *a) {
  if (!wn_handle_is(ctx, WN_HANDLE_CONTEXT)) return WN_ERR_ARGUMENT;
  if (a->is_enum)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %s %lld is unknown, expected 0 to %lld", function, a->name,
                   (long long)a->value, (long long)a->count - 1);
  if (a->negative)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %s, the count of %s, is negative", function, a->of, a->name);
  if (!a->pointer && a->of)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %s is NULL and %s is not 0", function, a->name, a->of);
  if (!a->pointer) return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %s is NULL", function, a->name);
  if (misuse_may_be_block(a->pointer) && misuse_word(a->pointer) == WN_BLOCK_FREED)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %s was destroyed before this call", function, a->name);
  return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %s is no %s", function, a->name, misuse_names[a->kind]);
}
