/* Who holds a model of a server, and whether it is there (models.h). */
#include "serve/models.h"

void wn_served_hold(struct wn_served *served) {
  pthread_mutex_lock(&served->all->lock);
  served->users++;
  pthread_mutex_unlock(&served->all->lock);
}

void wn_served_release(struct wn_served *served) {
  struct wn_models *all = served->all;
  pthread_mutex_lock(&all->lock);
  served->used = ++all->tick;
  if (--served->users == 0 && served->state == WN_SERVED_LEAVING) pthread_cond_signal(&all->news);
  pthread_mutex_unlock(&all->lock);
}

const char *wn_served_status(const struct wn_served *served) {
  static const char *const names[] = {[WN_SERVED_OUT] = "unloaded",
                                      [WN_SERVED_WANTED] = "loading",
                                      [WN_SERVED_LOADING] = "loading",
                                      [WN_SERVED_READY] = "loaded",
                                      [WN_SERVED_LEAVING] = "loaded"};
  return names[served->state];
}
