/* Writes token files piece by piece, for wn_data_prepare. Layouts: see winnow/data.h. */
#ifndef WN_DATA_TOKEN_FILE_H
#define WN_DATA_TOKEN_FILE_H

#include "base/file.h"
#include "io/checksum.h"
#include "winnow/data.h"

/* Appends tokens to a file that gets its final name only on commit. */
struct wn_token_writer {
  struct wn_writer file;
  const char *layout; /* borrowed: "llmc" or "nanogpt" */
  int width;          /* bytes per token: 2 or 4 */
  int32_t vocab_size;
  uint64_t count;
  struct wn_checksum_stream sum; /* of the tokens */
};
/* What a file under the name `path` holds of an earlier writing, to be gone on with: 0 tokens begin it. It keeps that
 * name until commit. */
struct wn_token_kept {
  const char *path;
  uint64_t count, sum; /* of the tokens */
};
/* kept may be NULL: a temporary name. WN_ERR_ARGUMENT for an unknown layout or a vocabulary that the layout cannot
 * hold. */
wn_status wn_token_writer_open(wn_context *ctx, const char *path, const char *layout, int32_t vocab_size,
                               const struct wn_token_kept *kept, struct wn_token_writer *w);
wn_status wn_token_writer_append(wn_context *ctx, struct wn_token_writer *w, const int32_t *tokens, uint64_t count);
wn_status wn_token_writer_commit(wn_context *ctx, struct wn_token_writer *w);
void wn_token_writer_abort(struct wn_token_writer *w); /* after a failure; allowed on {0}, never opened */

const char *wn_token_file_path(const wn_token_file *file); /* for messages */

#endif
