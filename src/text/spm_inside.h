/* What is inside a struct wn_spm. */
#ifndef WN_TEXT_SPM_INSIDE_H
#define WN_TEXT_SPM_INSIDE_H

#include "text/finder.h"
#include "text/spm_model.h"
#include "text/spm_wire.h"

struct wn_spm_piece {
  size_t at; /* offset in the texts */
  uint16_t bytes;
  uint8_t type; /* enum wn_spm_piece_type */
  float score;
};

struct wn_spm {
  struct wn_spm_info info;
  struct wn_spm_piece *pieces; /* [count] */
  char *texts;                 /* each ends with a NUL */
  int32_t *slots;              /* [mask + 1] hash table from text to id, -1: free */
  uint32_t mask;
  int32_t count, bos, eos, unknown;
  struct wn_spm_trie rules; /* count 0: none */
  struct wn_finder symbols; /* the user-defined ones */
};

#endif
