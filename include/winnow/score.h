/* winnow: scoring. Log probabilities of given tokens, without holding the logits of a whole text: the basis of
 * perplexities, multiple choice and log probabilities of prompts. The session's budgets and policy and the model's
 * masks and thresholds apply: a token's score depends on what the session still holds. */
#ifndef WINNOW_SCORE_H
#define WINNOW_SCORE_H

#include "winnow/model.h"

WN_STABLE_BEGIN

/* Receives the scores. The arrays are the caller's; each may be NULL: not wanted. */
typedef struct wn_scores {
  size_t size;             /* sizeof the struct (context.h) */
  double *log_probability; /* [B,T] natural logarithm of the softmax over the whole vocabulary; 0 where nothing is
                              scored */
  /* [B,T] 1: this token is the most probable one (of equally probable tokens that with the lowest id) */
  uint8_t *greedy;
  int32_t top_k; /* K: also write the K most probable tokens of each scored position, the most probable first; at most
                    the vocabulary; 0: none */
  int32_t *top;  /* [B,T,K]; -1 where nothing is scored */
  double *top_log_probability; /* [B,T,K] */
} wn_scores;

/* Feeds tokens [B,T] as wn_session_feed does, and scores targets [B,T]: targets[b,t] as the token that follows
 * tokens[b,t]; -1: not scored. The output projection is computed for scored positions only, 64 at a time, so memory
 * does not grow with the text. WN_ERR_ARGUMENT names a token or target that the vocabulary does not have. */
wn_status wn_session_score(wn_context *ctx, wn_session *session, const int32_t *tokens, const int32_t *targets,
                           int64_t T, const wn_scores *scores);
/* Scores n candidates per sequence, targets [B,n], each as the token that follows what the session has seen, and feeds
 * none of them. The arrays of `scores` are [B,n], `top` [B,n,K]. WN_ERR_ARGUMENT where the session has seen nothing. */
wn_status wn_session_score_next(wn_context *ctx, wn_session *session, const int32_t *targets, int64_t n,
                                const wn_scores *scores);

WN_API_END
#endif
