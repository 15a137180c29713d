# frozen_string_literal: true

require "json"

module Jobqueue
  module Sidecar
    # What is answered about a run of a job: a status and the words that say what becomes of it.
    class Verdict
      # The worker reads 64 KiB of an answer.
      BODY_MAX = 60_000
      # As much as Sidekiq keeps of a message, in characters.
      MESSAGE_MAX = 10_000
      # And in bytes of JSON: as many characters of four bytes, and the rest of the answer has room.
      MESSAGE_BYTES = 45_000
      RESULT_MAX = 500

      attr_reader :words

      class << self
        def done
          new(status: "success", result: "")
        end

        # `words`: retry_in: seconds, kill: true, discard: true, unknown_class: true, or none.
        def failed(exception, backtrace: nil, **words)
          message = message_of(exception)
          new(status: "failure", **words,
              error_class: exception.class.name.to_s, error_message: message, result: message[0, RESULT_MAX],
              backtrace: backtrace)
        end

        # The job has not ended and is to run again elsewhere, at no cost: it was us who stopped it.
        def interrupted
          new(status: "failure", interrupted: true, result: "stopped before the job had ended")
        end

        # What Sidekiq would keep of the message; whatever the exception is, this raises nothing.
        def message_of(exception)
          text = exception.message.to_s[0, MESSAGE_MAX]
          text = text.dup.force_encoding(Encoding::UTF_8).scrub
          fits(text)
        rescue StandardError
          "!!! ERROR MESSAGE THREW AN ERROR !!!"
        end

        private

        # Ten thousand control characters are six times as long when they are JSON: of such a message, what fits.
        def fits(text)
          return text if JSON.generate(text).bytesize <= MESSAGE_BYTES

          left = MESSAGE_BYTES
          text.each_char.take_while { |char| (left -= JSON.generate(char).bytesize - 2).positive? }.join
        end
      end

      def initialize(**words)
        @words = words.compact
      end

      def with(**words)
        self.class.new(**self.words, **words)
      end

      # What decides comes first, the backtrace last and cut to what is left: of an answer that is too long the
      # worker heeds the beginning.
      def to_json(*)
        lines = words[:backtrace]
        return JSON.generate(words) if lines.nil?

        rest = words.reject { |name, _| name == :backtrace }
        left = BODY_MAX - JSON.generate(rest).bytesize
        kept = lines.take_while { |line| (left -= JSON.generate(line).bytesize + 1).positive? }
        JSON.generate(rest.merge(backtrace: kept))
      end
    end
  end
end
