# frozen_string_literal: true

module Jobqueue
  module Sidecar
    # Whether a failure was a job's last: Sidekiq's rule, pure. Seeing the same job, the worker comes to the same
    # decision; here it decides whether the Ruby code for that moment runs.
    module RetryRule
      module_function

      # :never (`retry: false`: neither retried nor kept among the dead), :exhausted or :again.
      # `count` is the number this failure has: 0 is the first. `failed_at` is when the first was, in seconds.
      def after_failure(job, count:, max_retries:, failed_at:, now:, retry_for_alone: false)
        wish = job["retry"]
        return :never unless wish

        limit = wish.is_a?(Integer) ? wish : max_retries
        duration = job["retry_for"]
        return :exhausted if count >= limit && !(duration && retry_for_alone)
        return :exhausted if duration.is_a?(Numeric) && failed_at + duration < now

        :again
      end
    end
  end
end
