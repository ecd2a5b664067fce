/* Other programs' names of winnow's tensors; each naming is one table. A tensor of winnow is one of theirs, or several
 * stacked (q, k, v; gate, up), or one transposed, or one that they store minus a number. Reading and writing use the
 * same tables, which are in families/. */
#ifndef WN_FORMATS_NAMES_H
#define WN_FORMATS_NAMES_H

#include "model/model.h"

enum { WN_NAME_BYTES = 256 };

struct wn_name {
  const char *ours; /* if `theirs` has a "%lld", a tensor of each layer, "attn.qkv.weight"; else a tensor of the model.
                       A "%lld" here is an expert's number, which is the second "%lld" of `theirs` */
  const char *theirs[3]; /* the stacked tensors, first rows first; "=" before a name that has no prefix */
  bool stacked;          /* theirs holds all experts' matrices, [experts, rows, columns] */
  bool transposed;       /* theirs is [in, out] */
  bool one_row;          /* ours is a vector, theirs a matrix of one row */
  bool listed;           /* theirs is not a tensor but a list of numbers in config.json's rope_scaling */
};

/* A row: WN_NAME("ffn.in.weight", "layers.%lld.mlp.gate_proj.weight", "layers.%lld.mlp.up_proj.weight"). */
#define WN_NAME(ours_, ...)                                                                                            \
  {                                                                                                                    \
    .ours = (ours_), .theirs = { __VA_ARGS__ }                                                                         \
  }

struct wn_names {
  const char *title;  /* "Hugging Face Llama" */
  const char *prefix; /* before every name without "="; checkpoints of base models leave it out */
  const struct wn_name *rows;
  int count;
  const struct wn_names *base; /* has the names that `rows` lacks; NULL: none */
  float gain_plus;             /* the weights of norms are theirs plus this */
  const char *const *ignored;  /* ends of names of tensors that are no weights (masks, tables of angles);
                                  NULL-terminated. NULL: those of `base` */
};
#define WN_NAME_ROWS(rows_) .rows = (rows_), .count = (int)(sizeof(rows_) / sizeof *(rows_))

/* winnow's own naming. */
extern const struct wn_names wn_names_own;

struct wn_name_part {
  char name[WN_NAME_BYTES];
  int64_t first, rows; /* in winnow's tensor: rows of a matrix, elements of a vector */
  int64_t expert,
      experts; /* in a tensor with all experts: which expert, of how many; experts 0: it is no such tensor */
  bool transposed, one_row, listed;
  float plus;
};
/* The parts that make up a tensor of winnow; returns how many, 0 if the naming has none. */
int wn_names_parts(const struct wn_names *names, const wn_model_config *config, const char *prefix,
                   const struct wn_param *row, struct wn_name_part out[3]);
/* If source and target have different rotary pairs (export.c), rows of q and k, and weights of their norms, are
 * reordered within a head: the source's row for row r of the target's tensor `row`. */
int64_t wn_names_other_row(const wn_model_config *target, const struct wn_param *row, int64_t r);
/* Is it a tensor that may be ignored? */
bool wn_names_ignore(const struct wn_names *names, const char *name);

#endif
