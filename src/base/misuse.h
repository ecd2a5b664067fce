/* Misuse of the public API: every public function checks its arguments here before it follows a pointer. NULL, a
 * destroyed or invalid handle, or a number that its enum lacks gives WN_ERR_ARGUMENT and one line with the function and
 * the argument. A function that returns no status returns its value for "nothing".
 *
 * A handle is recognised by a word in front of its block, which wn_handle_mark sets and wn_free replaces. If the memory
 * of a destroyed handle has been reused, the check may miss it: it finds mistakes, it is no protection. */
#ifndef WN_BASE_MISUSE_H
#define WN_BASE_MISUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

/* The opaque types: constant, name. */
#define WN_HANDLES(X)                                                                                                  \
  X(CONTEXT, "wn_context")                                                                                             \
  X(UNFINISHED, "wn_context") /* a context whose creation failed */                                                    \
  X(MODEL, "wn_model")                                                                                                 \
  X(SESSION, "wn_session")                                                                                             \
  X(SESSION_GROUP, "wn_session_group")                                                                                 \
  X(TOKENIZER, "wn_tokenizer")                                                                                         \
  X(TEXT_STREAM, "wn_text_stream")                                                                                     \
  X(TOKEN_FILE, "wn_token_file")                                                                                       \
  X(DATA_SOURCE, "wn_data_source")                                                                                     \
  X(SAFETENSORS, "wn_safetensors")                                                                                     \
  X(GGUF, "wn_gguf")                                                                                                   \
  X(GGUF_VALUES, "wn_gguf_values")                                                                                     \
  X(ATTENTION_PLAN, "wn_attention_plan")                                                                               \
  X(TRAINER, "wn_trainer")                                                                                             \
  X(PAGE, "wn_page")                                                                                                   \
  X(EVENTS, "wn_events")                                                                                               \
  X(LIVE, "wn_live")                                                                                                   \
  X(CONSTRAINT, "wn_constraint")                                                                                       \
  X(GENERATION, "wn_generation")                                                                                       \
  X(SERVER, "wn_server")

#define WN_HANDLE_CONSTANT(constant, name) WN_HANDLE_##constant,
enum wn_handle_kind { WN_HANDLE_NONE, WN_HANDLES(WN_HANDLE_CONSTANT) WN_HANDLE_KINDS };
#undef WN_HANDLE_CONSTANT

/* Marks a block from wn_alloc as a handle of this kind, until it is freed. */
void wn_handle_mark(void *block, enum wn_handle_kind kind);
/* Is p a live handle of this kind? False for NULL. */
bool wn_handle_is(const void *p, enum wn_handle_kind kind);

/* One argument of a call. */
struct wn_argument {
  const char *name, *of; /* of: the array's name, if this is its count */
  const void *pointer;
  enum wn_handle_kind kind; /* of: for an array, the name of its count */
  bool is_enum, negative;   /* negative: the count of an array is negative */
  int64_t value, count;     /* an enum's value, valid below count; or an array's length: it may be NULL if that is 0 */
};

/* p: must not be NULL. `title`: the parameter's name in the header, if the function uses another. */
#define WN_POINTER(p) WN_POINTER_AS(#p, p)
#define WN_POINTER_AS(title, p)                                                                                        \
  { .name = (title), .pointer = (const void *)(uintptr_t)(p), .count = 1 }
/* p: may be NULL if n is 0. A negative n is wrong. */
#define WN_ARRAY(p, n) WN_ARRAY_AS(#p, p, n)
#define WN_ARRAY_AS(title, p, n)                                                                                       \
  {                                                                                                                    \
    .name = (title), .of = #n, .pointer = (const void *)(uintptr_t)(p), .negative = (int64_t)(n) < 0,                  \
    .count = (n) != 0                                                                                                  \
  }
#define WN_HANDLE(p, constant) WN_HANDLE_AS(#p, p, constant)
#define WN_HANDLE_AS(title, p, constant)                                                                               \
  { .name = (title), .pointer = (p), .kind = WN_HANDLE_##constant }
#define WN_CONTEXT_OR_NULL(p)                                                                                          \
  { .name = #p, .pointer = (p), .kind = (p) ? WN_HANDLE_CONTEXT : WN_HANDLE_NONE }
#define WN_ENUM(v, n)                                                                                                  \
  { .name = #v, .is_enum = true, .value = (int64_t)(v), .count = (n) }

/* The first wrong argument of `arguments` [count]; NULL: all are right. */
const struct wn_argument *wn_misuse_find(const struct wn_argument *arguments, int count);
/* ctx may be NULL or invalid: then only the status is returned. */
wn_status wn_misuse_fail(wn_context *ctx, const char *function, const struct wn_argument *wrong);

#define WN_ARGUMENTS_COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* At the start of a function that returns a status. ctx: where the error text goes; it is also checked if it is in the
 * list. */
#define WN_CHECK_ARGUMENTS(ctx, ...)                                                                                   \
  do {                                                                                                                 \
    const struct wn_argument wn_arguments_[] = {__VA_ARGS__};                                                          \
    const struct wn_argument *wn_wrong_ = wn_misuse_find(wn_arguments_, WN_ARGUMENTS_COUNT(wn_arguments_));            \
    if (wn_wrong_) return wn_misuse_fail(ctx, __func__, wn_wrong_);                                                    \
  } while (0)
/* For functions whose first parameter is a context named ctx. WN_CHECK_CALL: the context only records errors, and may
 * be NULL. WN_CHECK_WORK: the function computes, or loads something that does, and needs a context. */
#define WN_CHECK_CALL(...) WN_CHECK_ARGUMENTS(ctx, WN_CONTEXT_OR_NULL(ctx), __VA_ARGS__)
#define WN_CHECK_WORK(...) WN_CHECK_ARGUMENTS(ctx, WN_HANDLE(ctx, CONTEXT), __VA_ARGS__)

/* At the start of a function without a status: `value` (nothing, for void) is returned on misuse. */
#define WN_CHECK_OR(value, ...)                                                                                        \
  do {                                                                                                                 \
    const struct wn_argument wn_arguments_[] = {__VA_ARGS__};                                                          \
    if (wn_misuse_find(wn_arguments_, WN_ARGUMENTS_COUNT(wn_arguments_))) return value;                                \
  } while (0)

#endif
