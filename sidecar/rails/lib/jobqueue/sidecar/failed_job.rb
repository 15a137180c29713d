# frozen_string_literal: true

require "json"
require "zlib"

module Jobqueue
  module Sidecar
    # A job with the fields that Sidekiq would have written after a failure: what retry blocks and death handlers get.
    class FailedJob
      attr_reader :job, :count

      # `backtrace`: the lines that the job asks to be kept; nil when it does not.
      def initialize(job, exception, backtrace: nil, now: Time.now)
        @now = now
        @job = job.merge("error_message" => Verdict.message_of(exception), "error_class" => exception.class.name.to_s)
        @job["queue"] = job["retry_queue"] if job["retry_queue"]
        if job["retry_count"].is_a?(Integer)
          @count = job["retry_count"] + 1
          @job["retried_at"] = timestamp
        else
          @count = 0
          @job["failed_at"] = timestamp
        end
        @job["retry_count"] = @count
        @job["error_backtrace"] = packed(backtrace) if backtrace
      end

      # When the first failure was, in seconds.
      def failed_at
        value = @job["failed_at"]
        case value
        when Integer then value / 1000.0
        when Float then value
        else @now.to_f
        end
      end

      private

      # JSON, deflated, in base64.
      def packed(lines)
        [Zlib::Deflate.deflate(JSON.generate(lines))].pack("m0")
      end

      # In the type of the job's own timestamps: milliseconds as an integer since Sidekiq 8, else seconds as a float.
      def timestamp
        @job["created_at"].is_a?(Integer) ? (@now.to_f * 1000).to_i : @now.to_f
      end
    end
  end
end
