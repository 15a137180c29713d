# frozen_string_literal: true

require "active_job"

# Fails with the exception that it is told, and says what it was given. Loaded into the application with ruby -r.
class FragileJob < ActiveJob::Base
  class Late < StandardError; end
  class Gone < StandardError; end

  retry_on Late, wait: 1, attempts: 2
  discard_on Gone

  def perform(exception, secret)
    raise self.class.const_get(exception), "no luck with #{secret}"
  end
end
