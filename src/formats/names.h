/* What other programs call our tensors. One table a naming: a row of ours is one of theirs, or several on top of each
 * other (q, k, v; gate, up), or one transposed, or one that they store less a number. Reading and writing use the same
 * rows; families/ has the tables. */
#ifndef WN_FORMATS_NAMES_H
#define WN_FORMATS_NAMES_H

#include "model/model.h"

enum { WN_NAME_BYTES = 256 };

struct wn_name {
  const char *ours;      /* "attn.qkv.weight" in each layer when theirs have a "%lld"; else a tensor of the model. A
                            "%lld" in ours is an expert's number, the second one of theirs */
  const char *theirs[3]; /* from top to bottom; "=" before a name that takes no prefix */
  bool stacked;          /* theirs holds all experts' on top of each other, as [experts, rows, columns] */
  bool transposed;       /* theirs is [in, out] */
  bool one_row;          /* ours is a vector, theirs a matrix of one row */
  float plus;            /* ours is theirs plus this */
  bool listed;           /* theirs is no tensor but a list of numbers in config.json's rope_scaling */
};

struct wn_names {
  const char *title;  /* "Hugging Face Llama" */
  const char *prefix; /* before every name but those with a "="; checkpoints of base models leave it out */
  const struct wn_name *rows;
  int count;
  const char *const *ignored; /* NULL-terminated ends of names of what is no weight: masks, tables of angles */
};

/* Our own. */
extern const struct wn_names wn_names_own;

struct wn_name_part {
  char name[WN_NAME_BYTES];
  int64_t first, rows;     /* of our tensor: rows of a matrix, elements of a vector */
  int64_t expert, experts; /* of a stacked tensor: which rows' worth of it, of how many; experts 0: it is not */
  bool transposed, one_row, listed;
  float plus;
};
/* The tensors that row is made of, 0 where the naming has none. */
int wn_names_parts(const struct wn_names *names, const wn_model_config *config, const char *prefix,
                   const struct wn_param *row, struct wn_name_part out[3]);
/* Of rotary positions, row r of our tensor `row` as a source has it whose pairs that turn together are not target's
 * (export.c): q, k and their gains change places within a head. */
int64_t wn_names_other_row(const wn_model_config *target, const struct wn_param *row, int64_t r);
bool wn_name_ends_with(const char *name, const char *end);
/* A tensor that is left aside knowingly. */
bool wn_names_ignore(const struct wn_names *names, const char *name);

#endif
