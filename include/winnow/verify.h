/* winnow: integrity. winnow writes a checksum of the header and of every tensor into safetensors and GGUF files, and of
 * the tokens into token files (docs/file-formats.md); loading compares them. Here they are compared file by file. They
 * guard against decay of disks and memory and against torn copies, not against forgery. */
#ifndef WINNOW_VERIFY_H
#define WINNOW_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

WN_EXPERIMENTAL_BEGIN

/* What a file was found to be. */
typedef enum wn_file_state {
  WN_FILE_OK,          /* every byte is as it was written */
  WN_FILE_NO_CHECKSUM, /* it can be read, but has no checksum to compare with */
  WN_FILE_DAMAGED,
  WN_FILE_UNREADABLE /* it could not be opened or read, or memory ran out */
} wn_file_state;
const char *wn_file_state_name(wn_file_state state); /* "ok", "no checksum", "damaged", "unreadable"; NULL: none */

/* One file. Borrowed for the call. */
typedef struct wn_file_report {
  const char *path;
  const char *kind; /* "safetensors", "GGUF", "tokens" */
  uint64_t bytes;
  wn_file_state state;
  const char *detail; /* what is damaged, with the tensor's name; "" where nothing is */
} wn_file_report;

/* false: no more files. */
typedef bool (*wn_verify_fn)(void *user, const wn_file_report *report);

/* Checks a file, or the safetensors, GGUF and token files of a folder (a checkpoint, a run, prepared data, a model of
 * another program) in the order of their names. `report` (may be NULL) is called for each. WN_OK if all are ok or have
 * no checksum; else the status of the first that is not, with its detail as the context's error. `report` is not called
 * where the path itself cannot be opened (WN_ERR_IO) or a folder has no such files (WN_ERR_ARGUMENT). */
wn_status wn_verify(wn_context *ctx, const char *path, wn_verify_fn report, void *user);

WN_API_END
#endif
