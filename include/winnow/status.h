/* winnow: status codes. Every fallible function returns one; the sentence that
 * goes with it (file, field, expected and found) is kept by the context and read
 * with wn_context_error(). */
#ifndef WINNOW_STATUS_H
#define WINNOW_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wn_status {
  WN_OK = 0,
  WN_ERR_ARGUMENT,    /* a caller's argument is out of range or inconsistent */
  WN_ERR_MEMORY,      /* an allocation failed */
  WN_ERR_IO,          /* the operating system refused: open, read, write, sync, full disk */
  WN_ERR_FORMAT,      /* a file's content is malformed, truncated or hostile */
  WN_ERR_CONFIG,      /* a configuration key or value is unknown or out of range */
  WN_ERR_SHAPE,       /* shapes of tensors or vocabularies do not agree */
  WN_ERR_UNSUPPORTED, /* this build or backend lacks the operation; the detail names it */
  WN_ERR_DIVERGED,    /* a loss became NaN or infinite */
  WN_ERR_CANCELLED    /* wn_context_cancel() was called; state was saved where documented */
} wn_status;

/* A constant name such as "WN_ERR_FORMAT"; never NULL. */
const char *wn_status_name(wn_status status);

#ifdef __cplusplus
}
#endif
#endif
