/* wn_data_prepare's state, for the two files that it consists of: prepare.c reads inputs, kept.c goes on after a kill.
 */
#ifndef WN_DATA_PREPARE_H
#define WN_DATA_PREPARE_H

#include <jansson.h>
#include "data/inputs.h"
#include "data/token_file.h"
#include "io/folder.h"
#include "text/tokenizer.h"

#define WN_KEPT ".prepare" /* the folder in the output's */

enum wn_prepare_breaks { WN_BREAK_FILE, WN_BREAK_BLANK, WN_BREAK_LINE };

struct wn_prepare_split {
  struct wn_token_writer writer;
  uint64_t documents, bytes;
};

struct wn_prepare {
  struct wn_folder folder;
  wn_context *ctx;
  const wn_data_prepare_options *o;
  struct wn_inputs inputs;
  json_t *command, *manifest; /* what the tokens depend on besides the inputs; of each finished input */
  bool resumable, kept;       /* every input can be read again; there is a state of it on the disk */
  double saved_at, save_cost; /* seconds */
  wn_tokenizer *tok;
  int32_t separator[1];              /* without bos: the token that ends a document */
  struct wn_prepare_split splits[3]; /* train, val, test */
  enum wn_prepare_breaks breaks;
  uint64_t documents, bytes;
  uint64_t files_done, files_total; /* bytes on disk */
  /* the current document */
  bool open, begun;
  struct wn_prepare_split *split;
  char *text; /* [capacity], not yet encoded */
  size_t count, capacity;
  struct wn_ids ids;
};

bool wn_prepare_has_test(const wn_data_prepare_options *o);
uint64_t wn_prepare_tokens(const struct wn_prepare *j); /* of all splits */
json_t *wn_prepare_split_json(const struct wn_prepare_split *s);
/* A file's size and checksum. */
wn_status wn_prepare_sum(struct wn_prepare *j, const char *path, uint64_t *bytes, uint64_t *sum);
/* Puts an input on the list of what went in. path NULL: the caller's texts. documents, tokens: how many there were
 * before it. sum NULL: it could be read only once. */
wn_status wn_prepare_finished(struct wn_prepare *j, const char *path, uint64_t bytes, const uint64_t *sum,
                              uint64_t documents, uint64_t tokens);

wn_status wn_kept_path(struct wn_prepare *j, const char *name, char path[4096]);
/* Takes up what an interrupted call left, or removes what is of no use. Needs the tokenizer's files in j->folder. */
wn_status wn_kept_begin(struct wn_prepare *j, struct wn_token_kept had[3]);
/* An input is finished: what is written so far need not be written again. */
wn_status wn_kept_save(struct wn_prepare *j);
/* The call is done but for the folder's commit: from here on a kill means to begin anew. */
wn_status wn_kept_end(struct wn_prepare *j);

#endif
