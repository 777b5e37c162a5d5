/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mail.c - a queue of calls, and the eventfd that wakes their one reader.
 *
 * OWNS      the eventfd.  The letters belong to their senders until posted and
 *           to the reader afterwards.
 *
 * INVARIANTS
 *   (1) The eventfd is readable whenever the queue is not empty and no run is
 *       under way: only the first letter of a queue writes it, and the reader
 *       clears it before it takes the queue.
 *
 * LOCKING   box->lock guards the queue.  It is a leaf; letters run without it.
 */
#include <sys/eventfd.h>

#include "fs/control/mail.h"

int kv_mailbox_init(struct kv_mailbox *box)
{
	box->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (box->fd < 0)
		return -errno;
	pthread_mutex_init(&box->lock, NULL);
	box->first = NULL;
	box->last = &box->first;
	return 0;
}

void kv_mailbox_fini(struct kv_mailbox *box)
{
	close(box->fd);
	pthread_mutex_destroy(&box->lock);
}

void kv_mailbox_post(struct kv_mailbox *box, struct kv_mail *mail)
{
	bool first;

	mail->next = NULL;
	pthread_mutex_lock(&box->lock);
	first = !box->first;
	*box->last = mail;
	box->last = &mail->next;
	/* Under the lock, so that the box may go once its mail has run. */
	if (first)
		(void)eventfd_write(box->fd, 1);
	pthread_mutex_unlock(&box->lock);
}

void kv_mailbox_run(struct kv_mailbox *box)
{
	struct kv_mail *mail, *next;
	eventfd_t count;

	(void)eventfd_read(box->fd, &count);
	pthread_mutex_lock(&box->lock);
	mail = box->first;
	box->first = NULL;
	box->last = &box->first;
	pthread_mutex_unlock(&box->lock);

	for (; mail; mail = next) {
		next = mail->next;
		mail->run(mail);
	}
}
