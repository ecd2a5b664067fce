/* winnow: status codes. Every fallible function returns one; the context keeps the sentence that explains it (file,
 * field, expected and found), read with wn_context_error(). */
#ifndef WINNOW_STATUS_H
#define WINNOW_STATUS_H

/* They stand around the declarations of every public header and give them C linkage and visibility outside the shared
 * library. WN_STABLE_BEGIN or WN_EXPERIMENTAL_BEGIN says what the declarations up to WN_API_END promise (docs/api.md):
 * stable ones change only with a minor version (from 1.0 on a major one), experimental ones may change at any time. */
#define WN_STABLE_BEGIN WN_API_BEGIN
#define WN_EXPERIMENTAL_BEGIN WN_API_BEGIN
#ifdef __cplusplus
#define WN_API_BEGIN                                                                                                   \
  extern "C" {                                                                                                         \
  _Pragma("GCC visibility push(default)")
#define WN_API_END                                                                                                     \
  _Pragma("GCC visibility pop")                                                                                        \
  }
#else
#define WN_API_BEGIN _Pragma("GCC visibility push(default)")
#define WN_API_END _Pragma("GCC visibility pop")
#endif

WN_STABLE_BEGIN

/* The result of a function. */
typedef enum wn_status {
  WN_OK = 0,
  WN_ERR_ARGUMENT,    /* a caller's argument is out of range or inconsistent */
  WN_ERR_MEMORY,      /* an allocation failed */
  WN_ERR_IO,          /* an error of the operating system: open, read, write, sync, full disk */
  WN_ERR_FORMAT,      /* a file's content is malformed, truncated or hostile */
  WN_ERR_CONFIG,      /* a configuration key or value is unknown or out of range */
  WN_ERR_SHAPE,       /* shapes of tensors or vocabularies do not agree */
  WN_ERR_UNSUPPORTED, /* this build or backend lacks the operation; the detail names it */
  WN_ERR_DIVERGED,    /* a loss, or what a model computes, became NaN or infinite */
  WN_ERR_CANCELLED    /* wn_context_cancel() was called; state was saved where documented */
} wn_status;

/* A constant name such as "WN_ERR_FORMAT"; never NULL. */
const char *wn_status_name(wn_status status);

WN_API_END
#endif
