# frozen_string_literal: true

# A job that fails, after as long as it is told: Sidekiq retries it after a second, twice, and gives it up.
class ChargeJob
  include Sidekiq::Worker

  class Declined < StandardError; end

  sidekiq_options queue: "critical", retry: 2, backtrace: 5
  sidekiq_retry_in { |_count, _exception| 1 }
  sidekiq_retries_exhausted { |job, _exception| NotesTheRun.note("gave up #{job["jid"]}") }

  def perform(customer, seconds = 0)
    sleep(seconds)
    raise Declined, "the card of #{customer} was declined"
  end
end
