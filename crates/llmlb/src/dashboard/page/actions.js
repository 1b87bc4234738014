// Actions on the spool.

import { $, confirm, plural, toast } from './dom.js';
import { act } from './api.js';

export function initActions() {
  const button = $('resend');
  button.addEventListener('click', async () => {
    const isSure = await confirm('Resend failed batches?', 'All failed batches move back into the spool and are delivered again. Their idempotency keys stay the same, so a receiver can detect batches that it already has.', 'Resend');
    if (!isSure) return;
    button.disabled = true;
    try {
      const { resent, problems } = await act('/dashboard/resend', {});
      toast([`${plural(resent, 'batch', 'batches')} moved back into the spool.`, ...problems].join(' '));
    } catch (error) {
      toast(error.message);
    } finally {
      button.disabled = false;
    }
  });
}
