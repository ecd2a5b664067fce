/* The context: backend name, threads, instruction set, log, the last error, the cancel flag. */
#include "base/context.h"
#include "base/alloc.h"
#include "base/crowd.h"
#include "base/error.h"
#include "base/misuse.h"
#include "base/number.h"
#include "base/options.h"

#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 1024

#define CONTEXT_BACKEND(name) #name
#define CONTEXT_COMMA ,
static const char *const context_backends[] = {WN_BACKENDS(CONTEXT_BACKEND, CONTEXT_COMMA)};
enum { CONTEXT_BACKENDS = sizeof context_backends / sizeof *context_backends };

/* The number of CPUs, or less if OMP_NUM_THREADS says so (of a list such as "2,4", its first number counts). */
static int default_threads(void) {
  const int cpus = wn_cpu_count();
  const char *text = getenv("OMP_NUM_THREADS");
  char *end = NULL;
  const long wanted = text ? strtol(text, &end, 10) : 0;
  return wanted > 0 && wanted < cpus && (!*end || *end == ',') ? (int)wanted : cpus;
}

/* 2^-24 is half a unit in the last place of a row's sum of attention weights (1): no float shows the difference. */
static wn_status context_dead_keys(wn_context *ctx, double option, double *out) {
  const char *text = getenv("WINNOW_DEAD_KEYS");
  char *end = NULL;
  *out = option > 0 ? option : option < 0 ? 0 : 0x1p-24;
  if (option == 0 && text) {
    *out = wn_number_read(text, &end);
    if (!*text || *end || !(*out >= 0 && *out <= 0.5))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "WINNOW_DEAD_KEYS is \"%s\"; it must be a share between 0 (none) and 0.5",
                     text);
  }
  if (*out <= 0.5) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "dead_keys is %g; it must be at most 0.5", option);
}

wn_status wn_context_create(const wn_context_options *options, wn_context **out) {
  if (!out) return WN_ERR_ARGUMENT;
  *out = NULL;
  wn_context *ctx;
  wn_status status = WN_ALLOC(NULL, "context", 1, &ctx);
  if (status != WN_OK) return status;
  wn_handle_mark(ctx, WN_HANDLE_UNFINISHED); /* so far it can only report an error and be destroyed */
  atomic_init(&ctx->cancelled, 0);
  *out = ctx;

  wn_context_options own = {0};
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_context_options, options, &own));
  ctx->log = own.log;
  ctx->log_user = own.log_user;
  if (own.pre && strlen(own.pre) >= sizeof ctx->pre)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "pre is %zu bytes long; it must be a name of less than %zu", strlen(own.pre),
                   sizeof ctx->pre);
  if (own.pre) strcpy(ctx->pre, own.pre);
  const char *backend = own.backend ? own.backend : context_backends[0];
  /* This is how whole test programs run on guard, or on a device (docs/adding-a-backend.md). */
  const char *guard = getenv("WINNOW_GUARD"), *instead = getenv("WINNOW_GUARD_BACKEND");
  if (guard && (!own.backend || !strcmp(own.backend, "ref") || !strcmp(guard, "all")))
    backend = instead ? instead : "guard";
  int which = 0;
  while (which < CONTEXT_BACKENDS && strcmp(backend, context_backends[which]) != 0) which++;
  if (which == CONTEXT_BACKENDS)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "backend \"%s\" is not known; this build has " WN_BACKENDS(CONTEXT_BACKEND, " and "), backend);
  strcpy(ctx->backend, backend);
  if (own.threads < 0 || own.threads > MAX_THREADS)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "threads is %d; it must be between 0 (all CPUs) and %d", own.threads,
                   MAX_THREADS);
  ctx->threads = own.threads ? own.threads : default_threads();
  if (ctx->threads > MAX_THREADS) ctx->threads = MAX_THREADS;
  WN_TRY(wn_alloc_reserve(ctx));
  WN_TRY(context_dead_keys(ctx, own.dead_keys, &ctx->dead_keys));
  if (own.exact_rows < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "exact_rows is %lld; it must not be negative", (long long)own.exact_rows);
  ctx->exact_rows = own.exact_rows;
  WN_TRY(wn_cpu_select_isa(ctx, &ctx->isa));
  ctx->exact_threads = own.threads > 1;
  wn_crowd_context(ctx->exact_threads, 1);
  wn_handle_mark(ctx, WN_HANDLE_CONTEXT);
  return WN_OK;
}

static bool context_is(const wn_context *ctx) {
  return wn_handle_is(ctx, WN_HANDLE_CONTEXT) || wn_handle_is(ctx, WN_HANDLE_UNFINISHED);
}

void wn_context_destroy(wn_context *ctx) {
  if (wn_handle_is(ctx, WN_HANDLE_CONTEXT)) wn_crowd_context(ctx->exact_threads, -1);
  if (context_is(ctx)) wn_free(ctx);
}

const char *wn_context_error(const wn_context *ctx) {
  return context_is(ctx) ? ctx->error : "";
}
int wn_context_threads(const wn_context *ctx) {
  return context_is(ctx) ? ctx->threads : 0;
}
const char *wn_context_backend(const wn_context *ctx) {
  return context_is(ctx) ? ctx->backend : "";
}

void wn_context_cancel(wn_context *ctx) {
  if (context_is(ctx)) atomic_store(&ctx->cancelled, 1); /* a lock-free store: safe in a signal handler */
}
void wn_context_resume(wn_context *ctx) {
  if (context_is(ctx)) atomic_store(&ctx->cancelled, 0);
}
int wn_context_cancelled(const wn_context *ctx) {
  return context_is(ctx) ? atomic_load(&ctx->cancelled) : 0;
}
